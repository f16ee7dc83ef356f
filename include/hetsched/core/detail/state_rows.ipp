// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::size_t element_bytes(std::string_view element) {
  std::size_t bits = 0;
  for (const char c : element.substr(std::min(element.find_first_of("0123456789"), element.size()))) {
    if (c < '0' || c > '9' || bits > 1000) return 0;
    bits = 10 * bits + as_size(c - '0');
  }
  return bits % 8 == 0 ? bits / 8 : 0;
}

HETSCHED_INLINE held_rows rows_held(const state_slice& s, std::size_t size) {
  const std::size_t count = s.bytes.size() / size;
  const bool spread = s.rows > 1 && s.held_apart > 0;
  held_rows found{.of = {.first = s.first, .length = 0, .rows = s.rows, .apart = s.rows > 1 ? s.apart : 0}};
  bool fits = s.bytes.size() % size == 0 && s.rows > 0;
  if (fits && spread) {
    fits = count / s.held_apart >= s.rows - 1;
    found.of.length = fits ? count - (s.rows - 1) * s.held_apart : 0;
    fits = fits && found.of.length <= s.held_apart;
  } else if (fits) {
    fits = count % s.rows == 0;
    found.of.length = count / s.rows;
  }
  found.held = spread ? s.held_apart : found.of.length;
  if (!fits || !lie_in(found.of, as_size(element_count(s.shape))))
    throw input_error(tensor_text(s.layer, s.name) + ": " + std::to_string(s.bytes.size()) + " bytes from element " +
                      std::to_string(s.first) + (s.rows == 1 ? "" : " in " + std::to_string(s.rows) + " rows") +
                      " do not lie in " + shape_text(s.element, s.shape));
  return found;
}

HETSCHED_INLINE std::size_t element_size(const state_slice& s) {
  const auto size = element_bytes(s.element);
  if (size == 0)
    throw input_error(tensor_text(s.layer, s.name) + ": there is no element " + s.element +
                      "; a name ends with its bits, like f32");
  return size;
}

HETSCHED_INLINE void pack(const state_slice& s, const held_rows& rows, std::size_t size, std::vector<std::byte>& packed) {
  for (std::size_t r = 0; r < s.rows; ++r) {
    const auto row = s.bytes.subspan(r * rows.held * size, rows.of.length * size);
    packed.insert(packed.end(), row.begin(), row.end());
  }
}

HETSCHED_INLINE std::vector<state_slice> copies_in(std::vector<std::byte>& bytes, std::span<const state_slice> slices) {
  std::vector<held_rows> rows;
  std::vector<std::size_t> sizes;
  std::size_t all = 0;
  for (const auto& s : slices) {
    sizes.push_back(element_size(s));
    rows.push_back(rows_held(s, sizes.back()));
    all += s.rows * rows.back().of.length * sizes.back();
  }
  bytes.clear();
  bytes.reserve(all);  // the copies view it
  std::vector<state_slice> copies(slices.begin(), slices.end());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto first = bytes.size();
    pack(slices[i], rows[i], sizes[i], bytes);
    copies[i].bytes = std::span(bytes).subspan(first);
    copies[i].held_apart = 0;
  }
  return copies;
}

}  // namespace hetsched::detail
