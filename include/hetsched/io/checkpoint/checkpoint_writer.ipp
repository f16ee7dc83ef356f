// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/checkpoint/checkpoint_writer.hpp>

namespace hetsched {

HETSCHED_INLINE void checkpoint_writer::copy(std::span<const state_slice> slices) {
  std::vector<detail::held_rows> rows;
  std::vector<std::size_t> sizes;
  std::size_t bytes = 0;
  for (const auto& s : slices) {
    sizes.push_back(detail::element_size(s));
    rows.push_back(detail::rows_held(s, sizes.back()));
    bytes += s.rows * rows.back().of.length * sizes.back();
  }
  copy_.clear();
  copy_.reserve(bytes);  // the slices of the copy view it
  slices_.assign(slices.begin(), slices.end());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto first = copy_.size();
    detail::pack(slices[i], rows[i], sizes[i], copy_);
    slices_[i].bytes = std::span(copy_).subspan(first);
    slices_[i].held_apart = 0;
  }
}

}  // namespace hetsched
