// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/flash_attention.hpp>

namespace hetsched {

HETSCHED_INLINE layer_chain with_flash_attention(layer_chain chain) {
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
