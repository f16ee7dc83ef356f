// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/plan_request.hpp>
#include <hetsched/planners/table.hpp>

namespace hetsched {

/// A plan soon, also on a large cluster, for those who cannot wait until a planner has seen all of it: what the planner finds
/// first on some nodes that have about the memory that the model takes, or twice that and so on as long as one of two doublings
/// in a row helps, those of one subcluster and then those that wide links join to it; and, where its plans may have several
/// pipelines, the same on more such parts, as many as are best. The default planner also takes what interop_dp and hexiscale find
/// so. Where that is none, or all devices are to be used, what the planner finds first on all of the cluster, if that is small or
/// as long as request.wait_for_first says so. Where the request's go_on is false, the best so far.
/// Returns: the plan, evaluated, of the smallest microbatches that there are costs for, with evidence of no bound; else a
/// refusal.
/// Throws: as the planner.
/// Complexity: the planner's tables and first plan for parts of some dozens of submeshes, and evaluate for 1, 2, 4 ... of them.
/// Determinism: as the planner's.
[[nodiscard]] outcome<plan> first_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                       const planner_entry& planner);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/first_plan.ipp>
#endif
