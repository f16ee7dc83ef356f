// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <hetsched/core/contract.hpp>

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
[[nodiscard]] inline slice intersection(std::span<const interval> a, std::span<const interval> b) {
  HETSCHED_EXPECTS(a.size() == b.size());
  slice common(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    common[d].first = std::max(a[d].first, b[d].first);
    common[d].last = std::max(common[d].first, std::min(a[d].last, b[d].last));
  }
  return common;
}

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

/// Calls run(position in a, position in b, length) for every run of neighbouring elements of a part that two slices have.
/// Requires: both contain the part.
template <class Run>
constexpr void for_each_run(std::span<const interval> a, std::span<const interval> b, std::span<const interval> part, Run&& run) {
  if (element_count(part) == 0) return;
  // Trailing dimensions that are whole in both make one run.
  std::size_t inner = part.size();
  std::int64_t length = 1;
  for (; inner > 0 && part[inner - 1] == a[inner - 1] && part[inner - 1] == b[inner - 1]; --inner)
    length *= part[inner - 1].size();
  if (inner > 0) length *= part[--inner].size();
  const auto visit = [&](auto& self, std::size_t d, std::int64_t in_a, std::int64_t in_b) -> void {
    if (d == part.size()) return run(in_a, in_b, length);
    in_a = in_a * a[d].size() + part[d].first - a[d].first;
    in_b = in_b * b[d].size() + part[d].first - b[d].first;
    if (d >= inner) return self(self, d + 1, in_a, in_b);
    for (std::int64_t i = 0; i < part[d].size(); ++i) self(self, d + 1, in_a + i, in_b + i);
  };
  visit(visit, 0, 0, 0);
}

/// Copies a part from the array of one slice to that of another.
/// Requires: both contain the part; the arrays do not overlap.
/// Complexity: O(elements + runs).
template <class T>
void copy_part(const T* from, std::span<const interval> from_slice, T* to, std::span<const interval> to_slice,
               std::span<const interval> part) {
  static_assert(std::is_trivially_copyable_v<T>);
  for_each_run(from_slice, to_slice, part, [&](std::int64_t source, std::int64_t target, std::int64_t length) {
    std::memcpy(to + target, from + source, static_cast<std::size_t>(length) * sizeof(T));
  });
}

}  // namespace hetsched
