// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/inference/detail/inference_channel.hpp>

namespace hetsched::detail {

HETSCHED_INLINE bool is_plausible(const inference_header& h) {
  const auto dimensions = h.dimensions;
  if (h.step < 0 || h.step > static_cast<std::int32_t>(inference_step::stop)) return false;
  if (h.text_bytes > inference_header::most_text_bytes || dimensions > inference_header::most_dimensions) return false;
  std::uint64_t left = inference_header::most_elements;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (h.extents[d] > left) return false;
    left /= std::max<std::uint64_t>(h.extents[d], 1);
  }
  return true;
}

}  // namespace hetsched::detail
