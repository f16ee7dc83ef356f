// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/memory.hpp>

namespace hetsched::detail {

HETSCHED_INLINE double kept_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d, std::int64_t samples,
                                  const activation_style& style) {
  const auto& l = at(chain.layers, index);
  const double scores = static_cast<double>(l.selective_saved_bytes) * style.attention_scale;
  const double rest = static_cast<double>(l.activation_bytes - l.selective_saved_bytes);
  const double replicated = std::min(rest, style.whole_tensors * static_cast<double>(l.tensor_reduce_bytes));
  const double share = static_cast<double>(samples) / d.context;
  const double selective = share * (replicated + (rest - replicated) / d.tensor) * style.activation_scale;
  if (mode == recomputation::none) return selective + share * scores / d.tensor * style.activation_scale;
  if (!l.recomputable) return selective;
  if (mode == recomputation::selective) return selective * style.selective_kept;
  const bytes_t input = index > 0 ? at(chain.layers, index - 1).boundary_bytes : 0;
  const int among = style.whole_inputs ? 1 : d.tensor;
  return std::min(selective, share * static_cast<double>(input) / among);
}

}  // namespace hetsched::detail
