// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// Indices [first, last) along one dimension of a tensor.
struct interval {
  std::int64_t first = 0;
  std::int64_t last = 0;
  [[nodiscard]] constexpr std::int64_t size() const { return last - first; }
  friend constexpr bool operator==(interval, interval) = default;
};

/// A box of a tensor: one interval per dimension, the slowest first. A scalar's has none.
using slice = std::vector<interval>;

/// Elements of a slice; those of a scalar are 1.
/// Throws: input_error where their number does not fit 64 bits.
[[nodiscard]] constexpr std::int64_t element_count(std::span<const interval> s) {
  std::int64_t count = 1;
  for (const auto& i : s) {
    if (i.last <= i.first) return 0;
    std::int64_t size = 0;
    if (__builtin_sub_overflow(i.last, i.first, &size)) throw input_error("integer overflow in an interval");
    count = checked_mul(count, size);
  }
  return count;
}

namespace detail {

/// Requires slices of one tensor.
constexpr void expect_one_tensor(std::size_t a, std::size_t b) {
  if (a != b)
    throw input_error("slices of " + std::to_string(a) + " and " + std::to_string(b) + " dimensions are not of one tensor");
}

namespace unchecked {

// Of slices that are known to be of one tensor, for loops.
[[nodiscard]] constexpr bool contains(std::span<const interval> outer, std::span<const interval> inner) {
  for (std::size_t d = 0; d < outer.size(); ++d)
    if (inner[d].first < outer[d].first || inner[d].last > outer[d].last) return element_count(inner) == 0;
  return true;
}

}  // namespace unchecked
}  // namespace detail

/// What two slices of one tensor share; element_count() of it is 0 if that is nothing.
/// Throws: input_error unless both have as many dimensions.
[[nodiscard]] slice intersection(std::span<const interval> a, std::span<const interval> b);

/// Whether two slices of one tensor have an element in common.
/// Throws: as intersection.
[[nodiscard]] constexpr bool overlap(std::span<const interval> a, std::span<const interval> b) {
  detail::expect_one_tensor(a.size(), b.size());
  for (std::size_t d = 0; d < a.size(); ++d)
    if (std::max(a[d].first, b[d].first) >= std::min(a[d].last, b[d].last)) return false;
  return true;
}

/// Whether `outer` has all elements of `inner`.
/// Throws: as intersection.
[[nodiscard]] constexpr bool contains(std::span<const interval> outer, std::span<const interval> inner) {
  detail::expect_one_tensor(outer.size(), inner.size());
  return detail::unchecked::contains(outer, inner);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/slice.ipp>
#endif
