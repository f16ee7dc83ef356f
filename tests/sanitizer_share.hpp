// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <vector>

namespace hetsched::test {

/// Random tests run one in so many of their instances where a sanitizer watches every step.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int sanitizer_share = 10;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr int sanitizer_share = 10;
#else
inline constexpr int sanitizer_share = 1;
#endif
#else
inline constexpr int sanitizer_share = 1;
#endif

/// Times that ranks are to keep are so many times as long there.
inline constexpr int sanitizer_slowdown = sanitizer_share > 1 ? 3 : 1;

/// Where an instance is a search, they run one in so many.
inline constexpr int search_share = sanitizer_share > 1 ? 40 : 1;

/// Tests whose instances take minutes together run one in sweep_share of them, those whose instances take seconds together one in
/// bulk_share; all of them in a build with HETSCHED_TEST_SWEEPS.
#ifdef HETSCHED_TEST_SWEEPS
inline constexpr bool sweeps = true;
inline constexpr int sweep_share = 1, bulk_share = 1;
#else
inline constexpr bool sweeps = false;
inline constexpr int sweep_share = sanitizer_share > 1 ? 80 : 10, bulk_share = sanitizer_share > 1 ? 100 : 4;
#endif

/// One in sanitizer_share of a list.
template <class List>
[[nodiscard]] auto share_of(const List& list) {
  std::vector<std::decay_t<decltype(list[0])>> some;
  for (std::size_t i = 0; i < std::size(list); i += sanitizer_share) some.push_back(list[i]);
  return some;
}

}  // namespace hetsched::test
