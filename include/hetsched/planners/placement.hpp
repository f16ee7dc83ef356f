// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/placement_test.cpp.

#include <functional>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/placement/options.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Cuts a chain of layers into stages on single devices, or given groups of devices, of one pipeline: any order of types, each
/// device once, contiguous layers, within memory. It starts from the least sum of latency and periods, and from interop_dp's plan
/// on the same devices, and plays other orders, cuts and warm-ups, unless options.stages says how many.
/// Returns: the plan, evaluated; its bound is one on all pipelines of these devices, and it is complete if it is within a
/// thousandth of that. A refusal where nothing fits, or the search was stopped before it met a plan; not applicable to costs that
/// are not sums over layers.
/// Throws: input_error for a problem, options or costs out of range, and for objectives but the iteration.
/// Complexity: as least_iteration.
/// Determinism: by the arguments; problem.parallel is not used.
/// Source: HAP5 sec. IV-D, whose mixed integer program has these solutions; here as a shortest path.
/// Example:
///     const auto found = place_stages(hardware, costs, {.microbatches = 32});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> place_stages(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const placement_options& options = {});

/// What is to be planned for inference.
struct inference_problem {
  int in_flight = 1;   ///< batches whose caches are held at once
  int batch_size = 1;  ///< requests that pass the stages together, as the cost model has it
  bool use_all_devices = false;
  plan_objective objective = plan_objective::latency;  ///< or throughput
  /// So many subclusters or, where these have nodes of several devices, nodes, from the first on, are all that is looked at and
  /// that the bound is of; 0: all.
  int parts = 0;
  std::function<bool(const search_progress&)> progress = {};  ///< as of planning_problem
  std::function<bool()> go_on = {};                           ///< as of planning_problem
};

/// The same for inference, with costs of that: the stages of which evaluate_inference says the least latency or the most
/// requests. Returns: the plan, evaluated; its bound is a proof if it is complete. Refusals as of place_stages. Throws:
/// input_error for a problem, options or costs out of range, and for objectives of training. Complexity: as least_sum and
/// least_interval. Determinism: by the arguments.
[[nodiscard]] outcome<inference_plan> place_inference(const cluster& hardware, const any_cost_model& costs,
                                                      const inference_problem& problem, const placement_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/placement.ipp>
#endif
