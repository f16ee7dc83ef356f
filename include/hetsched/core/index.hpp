// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

#include <hetsched/core/contract.hpp>

namespace hetsched {

namespace detail {

// Not in optimised code: inner loops index, also where NDEBUG is missing.
#if defined(HETSCHED_CONTRACTS) || (!defined(NDEBUG) && !defined(__OPTIMIZE__))
constexpr bool checks_indices = true;
#else
constexpr bool checks_indices = false;
#endif

template <class T>
concept index_like = std::integral<T> || std::is_enum_v<T>;

// std::cmp_less takes no characters and no enumerators, and nvcc no comparison of what is unsigned with 0.
template <index_like T>
[[nodiscard, gnu::always_inline]] constexpr bool is_natural(T n) {
  if constexpr (std::is_enum_v<T>)
    return is_natural(static_cast<std::underlying_type_t<T>>(n));
  else if constexpr (std::is_unsigned_v<T>)
    return true;
  else
    return n >= 0;
}

}  // namespace detail

/// A count, a position or an enumerator as the containers of the standard library want it. Requires: n >= 0.
template <detail::index_like T>
[[nodiscard, gnu::always_inline]] constexpr std::size_t as_size(T n) {
  if constexpr (detail::checks_indices) HETSCHED_EXPECTS(detail::is_natural(n));
  return static_cast<std::size_t>(n);
}

/// values[i] for any integer or enumerator. Requires: 0 <= i < the number of values.
template <class Values, detail::index_like T>
[[nodiscard, gnu::always_inline]] constexpr decltype(auto) at(Values&& values, T i) {
  if constexpr (detail::checks_indices)
    HETSCHED_EXPECTS(detail::is_natural(i) && static_cast<std::size_t>(i) < std::size(values));
  return std::forward<Values>(values)[static_cast<std::size_t>(i)];
}

}  // namespace hetsched
