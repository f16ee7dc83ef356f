// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string extents_text(const tensor_shape& shape) {
  if (shape.empty()) return "1 element";
  std::string text;
  for (const auto extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

HETSCHED_INLINE void refuse_strided(std::string_view what, const tensor_shape& shape) {
  throw input_error(std::string(what) + " is a view of " + extents_text(shape) +
                    " whose elements are not contiguous: make it contiguous before it is handed over");
}

HETSCHED_INLINE void refuse_shape(std::string_view what, const tensor_shape& found, const tensor_shape& expected) {
  throw input_error(std::string(what) + " is of the shape " + extents_text(found) + ", expected is " + extents_text(expected));
}

}  // namespace hetsched::detail
