// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <functional>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// Formulas for the costs of training.
enum class cost_formulas {
  automatic,  ///< tile where a model's operators are known, and any device's, else analytic
  analytic,   ///< analytic_cost_model
  tile        ///< tile_cost_model; devices that are not known_by_operators as analytic_cost_model has them
};

struct tile_device;
struct operator_shape;
struct operator_time;

/// What an operator was measured to take over what the tile model says of it, whose time is told: operator_correction::factor,
/// say. Positive and finite.
using operator_factor = std::function<double(const tile_device&, const operator_shape&, const operator_time&)>;

/// What training_costs leaves open.
struct training_cost_options {
  cost_formulas formulas = cost_formulas::automatic;
  hetsched::precision precision = hetsched::precision::fp16;
  granularity cut = granularity::sublayer;  ///< of a transformer into layers
  bool flash_attention = true;
  training_stack stack{};  ///< what runs the plan
  /// Samples of an iteration (plan_request::global_batch), for stacks with accumulation_bytes: of a pipeline's microbatches all
  /// but the first add their gradients to those before. Prices are their mean in a pipeline of the whole batch, and evaluate
  /// charges each of several with what it adds. 0: not known; one pipeline then adds once too often, and several seem better.
  int batch = 0;
  std::vector<recomputation> recompute{recomputation::none, recomputation::selective, recomputation::full};
  std::vector<int> zero{0, 1, 2, 3};  ///< ZeRO stages that placements may have
  int max_context = 1;
  int max_expert = INT_MAX;      ///< of models with experts; there are no more than experts
  operator_factor correction{};  ///< of the tile formulas' operators; empty: none
};

/// The formulas that `automatic` stands for: tile for a transformer where any device is known_by_operators, else analytic; what
/// is asked for stays. Each device is priced by itself, so others beside it change nothing.
[[nodiscard]] cost_formulas formulas_for(const cluster& hardware, bool knows_operators, cost_formulas asked);

/// Costs of training a transformer, by microbatch size: planners take them as they are. Weights, gradients and Adam's state are
/// those of the stack in mixed precision, or in fp32 throughout for models of 4 bytes a parameter.
/// Throws: input_error for a stack that makes no sense, or has products in fp8 under analytic formulas, or for a correction under
/// these; and, when asked for a size, as analytic_cost_model and make_tile_cost, and for a factor that is not positive.
/// Example:
///   const auto costs = training_costs(hardware, {.layers = 24, .hidden = 2048, .heads = 16, .vocab = 50257, .sequence = 1024});
///   const auto found = find_plan(hardware, costs, {.global_batch = 256});
[[nodiscard]] costs_by_size training_costs(const cluster& hardware, const transformer& model,
                                           const training_cost_options& options = {});

/// The same of a chain of layers, whose operators are not known: options.cut and `tile` do not apply.
/// Throws: input_error for cost_formulas::tile, a correction, and a stack that makes no sense or has products in fp8; and when
/// asked for a size, as analytic_cost_model.
[[nodiscard]] costs_by_size training_costs(const cluster& hardware, const layer_chain& model,
                                           const training_cost_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/training_costs.ipp>
#endif
