// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/problem.hpp>
#include <hetsched/planners/parallel_pipelines/planner.hpp>

namespace hetsched {

namespace detail {

template <class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> parallel_plan_with(const cluster& hardware, const Costs& costs, Algebra algebra,
                                               const planning_problem& asked, const parallel_pipelines_options& options) {
  using table_type = std::conditional_t<additive_cost_model<Costs>, additive_table, interval_table>;
  auto problem = make_interop_problem(hardware, costs);
  if (problem.placements.empty())
    return refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"};
  const table_type table(hardware, costs, problem);
  mark_dominated(problem, table);
  return parallel_planner<table_type, Algebra, Costs>(hardware, costs, problem, table, algebra, asked, options).run();
}

}  // namespace detail

/// Divides a cluster and a batch among pipelines that may differ in everything: devices, cuts, degrees, microbatches. Each is a
/// pipeline as interop_dp makes them; their gradients are added up once per iteration. Of one pipeline, equal copies, pipelines
/// by kind of device and mixtures, the plan of the shortest iteration that evaluate predicts. The search bounds sets of pipelines
/// by column generation: rents of devices, cheapest pipelines under them, and packings of these; small problems count all sets.
/// Returns: the plan, as evaluate fills it in, with the bound of the search; the best so far if problem.progress stopped it; else
/// what is short, by how much and where.
/// Throws: input_error for options or costs out of range.
/// Complexity: options limit it. A round of rents takes some 100 shortest paths of O(layers * (placements + classes^2)) each, for
/// additive costs.
/// Determinism: the plan depends on the arguments only, not on problem.parallel.
/// Source: docs/parallel-pipelines.md; HexiScale sec. 3 and 4 (unlike pipelines).
/// Example:
///     const analytic_cost_model costs(hardware, make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16})));
///     const auto found = parallel_pipelines(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> parallel_pipelines(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                               const parallel_pipelines_options& options = {}) {
  validate(hardware, problem);
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  if (!(options.gap >= 0 && options.effort >= 0 && options.rounds >= 0 && options.listed >= 0))
    throw input_error("gap, effort, rounds and listed must not be negative");
  switch (options.warmup) {
    case warmup_rule::h1f1b:
      return detail::parallel_plan_with(hardware, costs, detail::h1f1b_algebra{options.epsilon}, problem, options);
    case warmup_rule::exact:
      return detail::parallel_plan_with(hardware, costs, detail::exact_algebra{}, problem, options);
    case warmup_rule::one_f_one_b:
      return detail::parallel_plan_with(hardware, costs, detail::fixed_step_algebra{1}, problem, options);
    case warmup_rule::eager:
      return detail::parallel_plan_with(hardware, costs, detail::fixed_step_algebra{2}, problem, options);
  }
  throw input_error("unknown warm-up rule");
}

}  // namespace hetsched
