// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const layer_chain& chain) {
  if (chain.layers.empty()) throw input_error("the model has no layer");
  if (chain.parameter_bytes < 1) throw input_error("parameter_bytes must be at least 1");
  if (chain.heads < 0) throw input_error("heads must not be negative");
  if (chain.experts < 0) throw input_error("experts must not be negative");
  if (chain.sequence < 0) throw input_error("sequence must not be negative");
  for (const auto& l : chain.layers) {
    const auto require = [&](bool holds, const char* field) {
      if (!holds) throw input_error("layer " + l.name + ": " + field + " must be finite and not negative");
    };
    const auto amount = [](double x) { return x >= 0 && x <= std::numeric_limits<double>::max(); };
    require(amount(l.forward_flops), "forward_flops");
    require(amount(l.backward_flops), "backward_flops");
    require(amount(l.selective_flops), "selective_flops");
    require(amount(l.weight_backward_flops) && l.weight_backward_flops <= l.backward_flops,
            "weight_backward_flops (at most backward_flops)");
    require(amount(l.active_fraction), "active_fraction");
    require(l.parameters >= 0, "parameters");
    require(l.shared_parameters >= 0, "shared_parameters");
    const auto owner = static_cast<std::size_t>(l.owner);
    if (l.shared_parameters > 0 && (l.owner < 0 || owner >= chain.layers.size() || &chain.layers[owner] == &l))
      throw input_error("layer " + l.name + ": owner must be another layer of the chain");
    require(l.activation_bytes >= 0, "activation_bytes");
    require(l.selective_saved_bytes >= 0 && l.selective_saved_bytes <= l.activation_bytes,
            "activation_bytes - selective_saved_bytes");
    require(l.boundary_bytes >= 0, "boundary_bytes");
    require(l.memory_traffic_bytes >= 0, "memory_traffic_bytes");
    require(l.tensor_reduce_bytes >= 0, "tensor_reduce_bytes");
    require(l.context_gather_bytes >= 0, "context_gather_bytes");
    require(l.expert_parameters >= 0 && l.expert_parameters <= l.parameters, "parameters - expert_parameters");
    require(l.expert_exchange_bytes >= 0, "expert_exchange_bytes");
  }
}

}  // namespace hetsched
