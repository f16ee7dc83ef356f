// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
[[nodiscard]] constexpr std::int64_t element_count(std::span<const interval> s) {
  std::int64_t count = 1;
  for (const auto& i : s) count *= std::max<std::int64_t>(i.size(), 0);
  return count;
}

/// What two slices of one tensor share; element_count() of it is 0 if that is nothing.
/// Requires: as many dimensions.
[[nodiscard]] slice intersection(std::span<const interval> a, std::span<const interval> b);

/// Whether two slices of one tensor have an element in common.
[[nodiscard]] constexpr bool overlap(std::span<const interval> a, std::span<const interval> b) {
  for (std::size_t d = 0; d < a.size(); ++d)
    if (std::max(a[d].first, b[d].first) >= std::min(a[d].last, b[d].last)) return false;
  return true;
}

/// Whether `outer` has all elements of `inner`.
[[nodiscard]] constexpr bool contains(std::span<const interval> outer, std::span<const interval> inner) {
  for (std::size_t d = 0; d < outer.size(); ++d)
    if (inner[d].first < outer[d].first || inner[d].last > outer[d].last) return element_count(inner) == 0;
  return true;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/slice.ipp>
#endif
