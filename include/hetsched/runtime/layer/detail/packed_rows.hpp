// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <hetsched/runtime/tensor/tensor.hpp>

// Several tensors in one. All have the same first extent, the rows. A row of the one tensor holds a row of each part, so that it
// may be cut and put together row by row: a header that says what is in it, then the parts' bytes side by side, then zeros.
namespace hetsched::detail {

/// A part on its way; one that is left out has no shape.
struct packed_part {
  tensor_shape shape;
  std::size_t element_bytes = 0;
  const std::byte* from = nullptr;  ///< read when it is packed
  std::byte* to = nullptr;          ///< written when it is unpacked; null: it is passed over
};

/// The bytes of a row that parts take, with its header.
/// Throws: input_error for a part with another number of rows, as a part of `what`.
[[nodiscard]] std::size_t packed_row_bytes(std::span<const packed_part> parts, std::size_t rows, std::string_view what);

/// Writes parts as rows of row_bytes each.
/// Requires: row_bytes is at least packed_row_bytes().
void write_packed_rows(std::span<const packed_part> parts, std::byte* to, std::size_t rows, std::size_t row_bytes);

/// The shapes of the parts that rows hold; there is at least one row. `element_bytes`: of each part; with any_number one entry,
/// for any number of parts of that type.
/// Throws: input_error, which names `what`, for rows that hold other parts, or unlike ones.
[[nodiscard]] std::vector<tensor_shape> packed_shapes(const std::byte* from, std::size_t rows, std::size_t row_bytes,
                                                      std::span<const std::size_t> element_bytes, bool any_number,
                                                      std::string_view what);

/// Reads rows that write_packed_rows has written, of parts of these shapes.
void read_packed_rows(std::span<const packed_part> parts, const std::byte* from, std::size_t rows, std::size_t row_bytes);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layer/detail/packed_rows.ipp>
#endif
