// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hetsched::test {

/// Random tests run one in so many of their instances where a sanitizer watches every step.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int sanitizer_share = 5;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr int sanitizer_share = 5;
#else
inline constexpr int sanitizer_share = 1;
#endif
#else
inline constexpr int sanitizer_share = 1;
#endif

/// Where an instance is a search, they run one in so many.
inline constexpr int search_share = sanitizer_share * sanitizer_share;

}  // namespace hetsched::test
