// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/state_slice.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched::detail {

/// Bytes of an element, from the bits at the end of its name; 0 if there is no such element.
[[nodiscard]] std::size_t element_bytes(std::string_view element);

[[nodiscard]] inline bytes_t element_count(const std::vector<std::size_t>& shape) {
  bytes_t count = 1;
  for (const auto extent : shape) count = checked_mul(count, static_cast<bytes_t>(extent));
  return count;
}

[[nodiscard]] inline std::string tensor_text(int layer, const std::string& name) {
  return "layer " + std::to_string(layer) + ", " + name;
}
[[nodiscard]] inline std::string shape_text(const std::string& element, const std::vector<std::size_t>& shape) {
  std::string text = element + '[';
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? " x " : "") + std::to_string(shape[i]);
  return text + ']';
}

/// Rows of a tensor's elements, each `length` long.
struct element_rows {
  std::size_t first = 0, length = 0, rows = 1, apart = 0;
  [[nodiscard]] std::size_t begin(std::size_t row) const { return first + row * apart; }
  [[nodiscard]] std::size_t end() const { return rows == 0 ? first : begin(rows - 1) + length; }
};
/// Whether these are rows of a tensor with `whole` elements, which lie inside it and do not overlap.
[[nodiscard]] inline bool lie_in(const element_rows& r, std::size_t whole) {
  if (r.rows == 0 || r.first > whole || r.length > whole - r.first) return false;
  if (r.rows == 1) return true;
  return r.apart > 0 && r.first % r.apart + r.length <= r.apart && r.rows - 1 <= (whole - r.first - r.length) / r.apart;
}

/// Calls visit(first element, last element, row of a, row of b) for all that two lists of rows share, until it returns false.
/// Complexity: O(rows).
template <class Visit>
void for_each_shared(const element_rows& a, const element_rows& b, Visit&& visit) {
  if (a.end() <= b.first || b.end() <= a.first) return;
  for (std::size_t i = 0, k = 0; i < a.rows && k < b.rows;) {
    const auto first = std::max(a.begin(i), b.begin(k));
    const auto last = std::min(a.begin(i) + a.length, b.begin(k) + b.length);
    if (first < last && !visit(first, last, i, k)) return;
    a.begin(i) + a.length < b.begin(k) + b.length ? ++i : ++k;
  }
}

/// A slice's rows in the whole tensor, and how many elements they are apart in its bytes.
struct held_rows {
  element_rows of;
  std::size_t held = 0;
};

/// Throws: input_error for bytes that are no such rows of the tensor.
[[nodiscard]] held_rows rows_held(const state_slice& s, std::size_t size);

/// The size of a slice's elements. Throws: input_error if there are no such.
[[nodiscard]] std::size_t element_size(const state_slice& s);

/// Appends the rows of a slice, one behind the other.
void pack(const state_slice& s, const held_rows& rows, std::size_t size, std::vector<std::byte>& packed);

/// The slices as copies in `bytes`, one behind the other, whose memory is used again.
/// Throws: input_error for slices that do not lie in their tensors.
[[nodiscard]] std::vector<state_slice> copies_in(std::vector<std::byte>& bytes, std::span<const state_slice> slices);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/core/detail/state_rows.ipp>
#endif
