// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <cstddef>
#include <type_traits>

#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/interop_dp/planner.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

template <class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> plan_with(const cluster& hardware, const Costs& costs, Algebra algebra, const planning_problem& asked,
                                      const interop_options& options) {
  return with_tables(hardware, costs, [&](const interop_problem& problem, const auto& table) {
    using planner = interop_planner<std::remove_cvref_t<decltype(table)>, Algebra, Costs>;
    auto found = planner(hardware, costs, problem, table, algebra, asked, options).run();
    // Where links are missing, the order that a local search starts with may lead nowhere.
    constexpr std::size_t most_ordered = 8;
    if (found || found.why_not().why != refusal::kind::infeasible || !has_free_order(hardware, options.order) ||
        hardware.subclusters.size() > most_ordered)
      return found;
    auto all = options;
    all.order = subcluster_order::all;
    return planner(hardware, costs, problem, table, algebra, asked, all).run();
  });
}

}  // namespace detail

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
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> interop_dp(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                       const interop_options& options = {}) {
  validate_iteration(hardware, problem, "interop_dp");
  if (!(options.near_tie >= 0 && options.gap >= 0 && options.effort >= 0 && options.enumeration >= 0))
    throw input_error("near_tie, gap, effort and enumeration must not be negative");
  return detail::with_algebra(options.warmup, options.epsilon,
                              [&](auto algebra) { return detail::plan_with(hardware, costs, algebra, problem, options); });
}

}  // namespace hetsched
