// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>

namespace hetsched {

/// Rows of neighbouring elements, as two arrays have them: row r begins at first + r * stride.
struct strided_runs {
  std::int64_t first_a = 0, first_b = 0;
  std::int64_t length = 0;  ///< of a row
  std::int64_t rows = 1;
  std::int64_t stride_a = 0, stride_b = 0;
  friend constexpr bool operator==(const strided_runs&, const strided_runs&) = default;
};

namespace detail {

/// Requires: see for_each_strided.
constexpr void expect_runs(std::span<const interval> a, std::span<const interval> b, std::span<const interval> part,
                           std::int64_t first, std::int64_t last) {
  if (!contains(a, part) || !contains(b, part)) throw input_error("a part is not in both slices");
  if (const auto all = element_count(part); first < 0 || last > all)
    throw input_error("elements " + std::to_string(first) + " to " + std::to_string(last) + " are not all of a part of " +
                      std::to_string(all));
  // Positions in the arrays are counted in 64 bits.
  static_cast<void>(element_count(a));
  static_cast<void>(element_count(b));
}

}  // namespace detail

/// Calls each(strided_runs) for where the elements of a part lie in the arrays of two slices that have it; of these elements,
/// counted with the last dimension fastest, only [first, last). As few as one stride each allows: a part that is cut in one
/// dimension is one, and at most three where its ends are inside of rows. Pass the part itself as b where it is packed.
/// Throws: input_error unless both contain the part, and [first, last) lies in it.
/// Complexity: O(calls + dimensions).
template <class Each>
void for_each_strided(std::span<const interval> a, std::span<const interval> b, std::span<const interval> part,
                      std::int64_t first, std::int64_t last, Each&& each) {
  detail::expect_runs(a, b, part, first, last);
  if (first >= last) return;
  const auto whole = [&](std::size_t d) { return part[d] == a[d] && part[d] == b[d]; };
  // Elements of a row: up to the last dimension that is cut. Rows of one stride: up to the next one that is.
  std::size_t d = part.size();
  std::int64_t length = 1, inner_a = 1, inner_b = 1;
  const auto take = [&](std::int64_t& count) {
    --d;
    count *= part[d].size();
    inner_a *= a[d].size();
    inner_b *= b[d].size();
  };
  while (d > 0 && whole(d - 1)) take(length);
  if (d > 0) take(length);
  std::int64_t rows = 1;
  const std::int64_t stride_a = inner_a, stride_b = inner_b;
  while (d > 0 && whole(d - 1)) take(rows);
  if (d > 0) take(rows);
  const std::int64_t block = rows * length;
  const auto add = [&](std::int64_t at_a, std::int64_t at_b, std::int64_t row, std::int64_t column, std::int64_t count,
                       std::int64_t width) {
    if (count == 0 || width == 0) return;
    const bool joined = count == 1 || (stride_a == width && stride_b == width);
    each(strided_runs{.first_a = at_a + row * stride_a + column,
                      .first_b = at_b + row * stride_b + column,
                      .length = joined ? count * width : width,
                      .rows = joined ? 1 : count,
                      .stride_a = joined ? 0 : stride_a,
                      .stride_b = joined ? 0 : stride_b});
  };
  for (std::int64_t n = first / block; n * block < last; ++n) {
    std::int64_t at_a = 0, at_b = 0, rest = n, scale_a = inner_a, scale_b = inner_b;
    // The block's place among the dimensions in front of its rows.
    for (std::size_t k = d; k-- > 0;) {
      const std::int64_t i = part[k].first + rest % part[k].size();
      rest /= part[k].size();
      at_a += (i - a[k].first) * scale_a;
      at_b += (i - b[k].first) * scale_b;
      scale_a *= a[k].size();
      scale_b *= b[k].size();
    }
    std::int64_t within_a = 0, within_b = 0;
    for (std::size_t k = d; k < part.size(); ++k) {
      within_a = within_a * a[k].size() + part[k].first - a[k].first;
      within_b = within_b * b[k].size() + part[k].first - b[k].first;
    }
    at_a += within_a;
    at_b += within_b;
    const std::int64_t from = std::max<std::int64_t>(first - n * block, 0), to = std::min(last - n * block, block);
    const std::int64_t head = from / length, tail = to / length;
    if (head == tail) {
      add(at_a, at_b, head, from % length, 1, to - from);
      continue;
    }
    const bool cut = from % length != 0;
    if (cut) add(at_a, at_b, head, from % length, 1, length - from % length);
    add(at_a, at_b, head + (cut ? 1 : 0), 0, tail - head - (cut ? 1 : 0), length);
    add(at_a, at_b, tail, 0, 1, to % length);
  }
}

/// The same as a list.
/// Throws: as for_each_strided.
[[nodiscard]] inline std::vector<strided_runs> runs_of(std::span<const interval> a, std::span<const interval> b,
                                                       std::span<const interval> part, std::int64_t first, std::int64_t last) {
  std::vector<strided_runs> found;
  for_each_strided(a, b, part, first, last, [&](const strided_runs& r) { found.push_back(r); });
  return found;
}

/// Calls run(position in a, position in b, length) for every run of neighbouring elements of a part that two slices have.
/// Throws: as for_each_strided.
template <class Run>
void for_each_run(std::span<const interval> a, std::span<const interval> b, std::span<const interval> part, Run&& run) {
  for_each_strided(a, b, part, 0, element_count(part), [&](const strided_runs& r) {
    for (std::int64_t row = 0; row < r.rows; ++row) run(r.first_a + row * r.stride_a, r.first_b + row * r.stride_b, r.length);
  });
}

/// Copies a part from the array of one slice to that of another. Allocates nothing.
/// Requires: the arrays have all elements of their slices and do not overlap.
/// Throws: as for_each_strided.
/// Complexity: O(elements + runs).
template <class T>
void copy_part(const T* from, std::span<const interval> from_slice, T* to, std::span<const interval> to_slice,
               std::span<const interval> part) {
  static_assert(std::is_trivially_copyable_v<T>);
  for_each_run(from_slice, to_slice, part, [&](std::int64_t source, std::int64_t target, std::int64_t length) {
    std::memcpy(to + target, from + source, as_size(length) * sizeof(T));
  });
}

}  // namespace hetsched
