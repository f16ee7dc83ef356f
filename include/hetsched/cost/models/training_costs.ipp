// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/model/flash_attention.hpp>

namespace hetsched {

namespace detail {

// Makes the costs of a size once; they live as long as whoever has them.
template <class Make>
[[nodiscard]] costs_by_size made_once(Make make) {
  return [make = std::move(make), known = std::map<int, any_cost_model>()](int microbatch_size) mutable {
    const auto found = known.find(microbatch_size);
    if (found != known.end()) return found->second;
    return known.emplace(microbatch_size, any_cost_model::owner_of(make(microbatch_size))).first->second;
  };
}

template <class Options>
[[nodiscard]] Options options_of(const training_cost_options& asked, int parameter_bytes, int microbatch_size) {
  Options options;
  options.microbatch_size = microbatch_size;
  options.batch = asked.batch;
  options.precision = asked.precision;
  options.recompute = asked.recompute;
  options.zero = asked.zero;
  options.memory = memory_in(asked.stack, asked.precision, parameter_bytes);
  options.activations = asked.stack.activations;
  options.overheads = asked.stack.overheads;
  options.gather_overlap = asked.stack.gather_overlap;
  options.reduction_overlap = asked.stack.reduction_overlap;
  options.update_overlap = asked.stack.update_overlap;
  options.update_bandwidth = asked.stack.update_bandwidth;
  options.max_context = asked.max_context;
  options.max_expert = asked.max_expert;
  return options;
}

// The tile model's seconds, corrected.
struct factored_timer {
  operator_factor factor{};

  [[nodiscard]] double operator()(const tile_device& d, const operator_shape& op) const {
    const auto time = predict_operator(d, op);
    if (!factor) return time.seconds;
    const double by = factor(d, op, time);
    if (!(by > 0 && by <= std::numeric_limits<double>::max()))
      throw input_error("the correction of an operator must be positive and finite");
    return time.seconds * by;
  }
};

}  // namespace detail

HETSCHED_INLINE cost_formulas formulas_for(const cluster& hardware, bool knows_operators, cost_formulas asked) {
  if (asked != cost_formulas::automatic) return asked;
  const bool known = std::any_of(hardware.subclusters.begin(), hardware.subclusters.end(),
                                 [](const subcluster& s) { return known_by_operators(s.device); });
  return knows_operators && known ? cost_formulas::tile : cost_formulas::analytic;
}

HETSCHED_INLINE costs_by_size training_costs(const cluster& hardware, const layer_chain& model,
                                             const training_cost_options& options) {
  validate(options.stack);
  if (options.formulas == cost_formulas::tile)
    throw input_error("the tile formulas need a transformer, whose operators are known; found a chain of layers");
  if (options.stack.fp8_products)
    throw input_error("stack " + options.stack.name +
                      " has products in fp8: only the tile formulas, of a transformer, know which these are");
  if (options.correction)
    throw input_error("a correction is one of operators: only the tile formulas, of a transformer, know which these are");
  auto chain = options.flash_attention ? with_flash_attention(model) : model;
  return detail::made_once([hardware, chain = std::move(chain), options](int microbatch_size) {
    return analytic_cost_model(hardware, chain,
                               detail::options_of<analytic_options>(options, chain.parameter_bytes, microbatch_size));
  });
}

HETSCHED_INLINE costs_by_size training_costs(const cluster& hardware, const transformer& model,
                                             const training_cost_options& options) {
  if (options.formulas == cost_formulas::analytic) return training_costs(hardware, make_chain(model, options.cut), options);
  validate(options.stack);
  return detail::made_once([hardware, model, options](int microbatch_size) {
    auto own = detail::options_of<tile_cost_options>(options, model.parameter_bytes, microbatch_size);
    own.analytic_elsewhere = true;
    own.host_launch_s = options.stack.host_launch_s;
    own.flash = options.stack.flash;
    return make_tile_cost(hardware, model, own,
                          {.attention = options.flash_attention ? attention_kernels::flash : attention_kernels::plain,
                           .fusion = options.stack.fusion,
                           .autocast = options.stack.autocast,
                           .wide_weights = own.memory.weight_bytes > 2,  // FSDP gathers them in 16 bits
                           .fp8_products = options.stack.fp8_products,
                           .causal = model.head == output_head::language_model,
                           .sequence_parallel = true},
                          options.cut, detail::factored_timer{options.correction});
  });
}

}  // namespace hetsched
