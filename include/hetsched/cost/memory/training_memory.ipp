// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/training_memory.hpp>

namespace hetsched {

HETSCHED_INLINE stage_cost layer_memory(const layer_chain& chain, int index, std::int64_t parameters, const placement& where,
                                        std::int64_t samples, const training_memory& state, const activation_style& style) {
  const auto& d = where.degrees;
  const auto share = [&](int bytes_each, int zero, int sharded_from) {
    return parameter_share(parameters, at(chain.layers, index).expert_parameters, bytes_each, d, zero, sharded_from);
  };
  stage_cost held;
  held.gradient_bytes = share(state.gradient_bytes, where.zero, 2);
  held.optimizer_bytes = share(state.optimizer_bytes, where.zero, 1);
  held.weight_bytes = checked_add(share(state.held_weight_bytes(where.zero), where.zero, 3),
                                  checked_add(held.gradient_bytes, held.optimizer_bytes));
  if (index > 0 && index + 1 < chain.size()) held.weight_bytes = checked_add(held.weight_bytes, share(state.fp8_bytes, 0, 3));
  held.activation_bytes = activation_bytes(chain, index, where.recompute, d, samples, style);
  held.temporary_bytes = temporary_bytes(chain, index, where.recompute, d, samples, style);
  if (where.zero == 3)
    held.temporary_bytes = checked_add(checked_add(held.temporary_bytes, share(state.working_bytes, 0, 3)),
                                       share(state.working_part_bytes, where.zero, 3));
  return held;
}

HETSCHED_INLINE memory_use stage_memory(const layer_chain& chain, layer_range layers, const degrees& d,
                                        const stage_memory_options& o) {
  HETSCHED_EXPECTS(layers.first >= 0 && layers.first <= layers.last && layers.last <= chain.size());
  validate(o.state);
  validate(o.overheads);
  validate_zero(o.zero);
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(what);
  };
  require(d.data >= 1 && d.context >= 1 && d.tensor >= 1, "degrees must be at least 1");
  require(o.samples >= 1 && o.in_flight >= 0, "a microbatch needs samples, and microbatches in flight must not be negative");
  validate(o.style);
  const placement where{.mesh = {}, .degrees = d, .recompute = o.recompute, .zero = o.zero};
  stage_cost held;
  for (int i = layers.first; i < layers.last; ++i) {
    const auto& l = at(chain.layers, i);
    const bool has_owner = l.owner >= layers.first && l.owner < layers.last;
    const auto parameters = checked_add(l.parameters, has_owner ? 0 : l.shared_parameters);
    held += layer_memory(chain, i, parameters, where, o.samples, o.state, o.style);
  }
  return memory_of(held, o.overheads, o.in_flight);
}

}  // namespace hetsched
