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
/// device once, contiguous layers, within memory. Under the objective iteration it minimises what no schedule of these stages
/// can undercut, holding as many microbatches as 1F1B does, and takes of exact_1f1b, h1f1b and 1f1b the best; under latency and
/// throughput (costs of inference) what evaluate_inference says, with problem.microbatches batches of requests in flight.
/// Returns: the plan, evaluated; its bound is a proof if complete, which under iteration takes long where dozens of devices are
/// all needed. A refusal where nothing fits, or problem.progress stopped the search before it met a plan; not
/// applicable to costs that are not sums over layers.
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
