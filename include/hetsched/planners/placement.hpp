// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/placement_test.cpp.

#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/placement/options.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Cuts a chain of layers into stages on single devices, or given groups of devices, of one pipeline: any order of types, each
/// device once, contiguous layers, within memory. Under the objective iteration it starts from the least sum of latency and
/// periods, and from interop_dp's plan on the same devices, and plays other orders, cuts and warm-ups, unless options.stages says
/// how many; under latency and throughput (costs of inference) it minimises what evaluate_inference says, with
/// problem.microbatches batches of requests in flight.
/// Returns: the plan, evaluated; under iteration its bound is one on all pipelines of these devices, and it is complete if it is
/// within a thousandth of that; else the bound is a proof if complete. A refusal where nothing fits, or the search was stopped
/// before it met a plan; not applicable to costs that are not sums over layers.
/// Throws: input_error for a problem, options or costs out of range, and for the objective cost.
/// Complexity: as least_sum, least_interval and least_iteration.
/// Determinism: by the arguments; problem.parallel is not used.
/// Source: HAP5 sec. IV-D, whose mixed integer program has these solutions; here as a shortest path.
/// Example:
///     const auto found = place_stages(hardware, costs, {.microbatches = 32});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> place_stages(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const placement_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/placement.ipp>
#endif
