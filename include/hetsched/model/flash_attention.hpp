// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/units.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// The same layers with attention in one kernel that never stores its scores. They are neither kept nor moved through memory,
/// and backward makes them again: five products to the two of forward. So for model FLOPs, ask training_flops of the chain
/// before.
/// Source: Dao et al. 2022, sec. 3.
[[nodiscard]] inline layer_chain with_flash_attention(layer_chain chain) {
  for (auto& l : chain.layers) {
    l.activation_bytes -= l.selective_saved_bytes;
    const bytes_t moved = checked_mul(2, l.selective_saved_bytes);
    l.memory_traffic_bytes -= moved < l.memory_traffic_bytes ? moved : l.memory_traffic_bytes;
    l.backward_flops += l.selective_flops / 2;
    l.selective_saved_bytes = 0;
    l.selective_flops = 0;
  }
  return chain;
}

}  // namespace hetsched
