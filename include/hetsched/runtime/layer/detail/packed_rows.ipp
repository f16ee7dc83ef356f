// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/layer/detail/packed_rows.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// The number of parts; then of each the number of its extents and all of them but the first, which is that of the rows.
[[nodiscard]] HETSCHED_INLINE std::vector<std::uint32_t> packed_header(std::span<const packed_part> parts) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(parts.size())};
  for (const auto& p : parts) {
    words.push_back(static_cast<std::uint32_t>(p.shape.size()));
    for (std::size_t d = 1; d < p.shape.size(); ++d) words.push_back(static_cast<std::uint32_t>(p.shape[d]));
  }
  return words;
}

[[nodiscard]] HETSCHED_INLINE std::size_t bytes_of_row(const packed_part& p) {
  if (p.shape.empty()) return 0;
  std::size_t bytes = p.element_bytes;
  for (std::size_t d = 1; d < p.shape.size(); ++d) bytes *= p.shape[d];
  return bytes;
}

HETSCHED_INLINE std::size_t packed_row_bytes(std::span<const packed_part> parts, std::size_t rows, std::string_view what) {
  std::size_t bytes = sizeof(std::uint32_t);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& shape = parts[i].shape;
    bytes += sizeof(std::uint32_t) * std::max(shape.size(), std::size_t{1}) + bytes_of_row(parts[i]);
    const auto refuse = [&](const std::string& expected) {
      throw input_error("part " + std::to_string(i) + " of " + std::string(what) + " is of the shape " + extents_text(shape) +
                        ", expected are " + expected);
    };
    if (!shape.empty() && shape.front() != rows) refuse(std::to_string(rows) + " rows, as the others have");
    for (const auto extent : shape)
      if (extent > std::numeric_limits<std::uint32_t>::max()) refuse("extents below 2^32");
  }
  return bytes;
}

HETSCHED_INLINE void write_packed_rows(std::span<const packed_part> parts, std::byte* to, std::size_t rows,
                                       std::size_t row_bytes) {
  const auto header = packed_header(parts);
  for (std::size_t row = 0; row < rows; ++row) {
    std::byte* const first = to + row * row_bytes;
    std::byte* next = first + header.size() * sizeof(std::uint32_t);
    std::memcpy(first, header.data(), header.size() * sizeof(std::uint32_t));
    for (const auto& p : parts) {
      const std::size_t bytes = bytes_of_row(p);
      if (bytes > 0) std::memcpy(next, p.from + row * bytes, bytes);
      next += bytes;
    }
    std::fill(next, first + row_bytes, std::byte{0});
  }
}

HETSCHED_INLINE std::vector<tensor_shape> packed_shapes(const std::byte* from, std::size_t rows, std::size_t row_bytes,
                                                        std::span<const std::size_t> element_bytes, bool any_number,
                                                        std::string_view what) {
  const auto wrong = [&](const std::string& text) -> void {
    throw input_error(std::string(what) + " is not of packed parts: " + text);
  };
  std::size_t place = 0;
  const auto word = [&] {
    std::uint32_t value = 0;
    if (row_bytes - place < sizeof value) wrong("its rows end within their header");
    std::memcpy(&value, from + place, sizeof value);
    place += sizeof value;
    return std::size_t{value};
  };
  const std::size_t count = word();
  if (any_number ? count > row_bytes : count != element_bytes.size())
    wrong("found " + std::to_string(count) + ", expected " + std::to_string(element_bytes.size()));
  std::vector<tensor_shape> shapes;
  std::size_t left = row_bytes;  // what parts may take
  for (std::size_t i = 0; i < count; ++i) {
    auto& shape = shapes.emplace_back();
    const std::size_t extents = word();
    if (extents == 0) continue;
    if (extents > row_bytes) wrong("part " + std::to_string(i) + " has " + std::to_string(extents) + " extents");
    shape.push_back(rows);
    std::size_t bytes = element_bytes[any_number ? 0 : i];
    for (std::size_t d = 1; d < extents; ++d) {
      shape.push_back(word());
      if (shape.back() > 0 && bytes > row_bytes / shape.back()) wrong("part " + std::to_string(i) + " is longer than its rows");
      bytes *= shape.back();
    }
    if (bytes > left) wrong("its parts are longer than its rows");
    left -= bytes;
  }
  if (left < place) wrong("its parts are longer than its rows");
  for (std::size_t row = 1; row < rows; ++row)  // of several senders
    if (std::memcmp(from, from + row * row_bytes, place) != 0)
      wrong("row " + std::to_string(row) + " has parts of other shapes than row 0");
  return shapes;
}

HETSCHED_INLINE void read_packed_rows(std::span<const packed_part> parts, const std::byte* from, std::size_t rows,
                                      std::size_t row_bytes) {
  const std::size_t header = packed_header(parts).size() * sizeof(std::uint32_t);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::byte* next = from + row * row_bytes + header;
    for (const auto& p : parts) {
      const std::size_t bytes = bytes_of_row(p);
      if (bytes > 0 && p.to) std::memcpy(p.to + row * bytes, next, bytes);
      next += bytes;
    }
  }
}

}  // namespace hetsched::detail
