// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp/options.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Cuts a model into the stages of one pipeline over a heterogeneous cluster, each stage on a submesh of one subcluster: over
/// contiguous cuts, submeshes, degrees, ways of saving memory, orders of the subclusters and periods, the plan of the shortest
/// iteration that evaluate predicts. The search works on
///     sum (t_i + 2 c_i) + (M - 1) * period + end of updates
/// such that no stage takes longer than the period, no boundary is occupied for longer, and the warm-ups that the period needs
/// fit in memory: a first plan at once, then lower bounds on ranges of periods (shortest paths with rents of devices), beams that
/// those guide, and exact dynamic programs where they come to an end. evaluate judges every plan that is better by that sum, and
/// near-ties.
/// Returns: the plan, as evaluate fills it in, with the bound of the search; the best so far if problem.progress stopped it; else
/// what is short, by how much and where.
/// Throws: input_error for options or costs out of range.
/// Complexity: options.effort limits it. For K subclusters, P placements and L layers, a period's bound takes
/// O(2^K rounds P L), an exact program O(states * placements) for additive models and H-1F1B, up to L times that else; other
/// models also take O(P L^2) memory and calls of stage.
/// Determinism: the plan depends on the arguments only, not on problem.parallel.
/// Source: HARP sec. 5, Eq. 12-19, with the period free; docs/planner.md.
/// Example:
///     const analytic_cost_model costs(hardware, make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16})));
///     const auto found = interop_dp(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> interop_dp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                       const interop_options& options = {});
/// The same with the answers of a book, and more where it needs them.
[[nodiscard]] outcome<plan> interop_dp(price_book& book, const planning_problem& problem, const interop_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/interop_dp.ipp>
#endif
