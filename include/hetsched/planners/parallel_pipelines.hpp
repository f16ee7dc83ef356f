// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <cstdint>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines/options.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Divides a cluster and a batch among pipelines that may differ in everything: devices, cuts, degrees, microbatches. Each is a
/// pipeline as interop_dp makes them; their gradients are added up once per iteration. Of one pipeline, equal copies, pipelines
/// by kind of device and mixtures, the plan of the shortest iteration that evaluate predicts; under the objective cost, the plan
/// of the least money per sample whose iteration ends within problem.deadline_s. The search bounds sets of pipelines by column
/// generation: rents of devices, cheapest pipelines under them, and packings of these; small problems count all sets.
/// Returns: the plan, as evaluate fills it in, with the bound of the search; the best so far if problem.progress stopped it; else
/// what is short, by how much and where.
/// Throws: input_error for options or costs out of range, and where cost counts and a device has no price.
/// Complexity: options limit it. A round of rents takes some 100 shortest paths of O(layers * (placements + classes^2)) each, for
/// additive costs.
/// Determinism: the plan depends on the arguments only, not on problem.parallel.
/// Source: docs/parallel-pipelines.md; HexiScale sec. 3 and 4 (unlike pipelines).
/// Example:
///     const analytic_cost_model costs(hardware, make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16})));
///     const auto found = parallel_pipelines(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> parallel_pipelines(const cluster& hardware, const any_cost_model& costs,
                                               const planning_problem& problem, const parallel_pipelines_options& options = {});
/// The same with the answers of a book, and more where it needs them.
[[nodiscard]] outcome<plan> parallel_pipelines(price_book& book, const planning_problem& problem,
                                               const parallel_pipelines_options& options = {});

/// Plans from the fastest to the cheapest, of which none is both slower and dearer than another: for deadlines in equal ratios
/// between the two, the cheapest plan that keeps it. Each plan's evidence holds for its own deadline. problem.objective does not
/// count; problem.deadline_s ends the frontier.
/// Returns: no more than `points` plans by rising iteration and falling cost, fewer if problem.progress stopped it; the refusal
/// if there is none.
/// Throws: as parallel_pipelines under the objective cost.
/// Complexity: no more than points + 1 times parallel_pipelines.
[[nodiscard]] outcome<std::vector<plan>> time_cost_frontier(const cluster& hardware, const any_cost_model& costs,
                                                            planning_problem problem, parallel_pipelines_options options = {},
                                                            int points = 16);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/parallel_pipelines.ipp>
#endif
