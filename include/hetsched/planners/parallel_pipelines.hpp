// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/parallel_pipelines/planner.hpp>
#include <hetsched/search/frontier.hpp>
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
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> parallel_pipelines(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                               const parallel_pipelines_options& options = {}) {
  validate(hardware, problem);
  if (!(options.gap >= 0 && options.effort >= 0 && options.rounds >= 0 && options.listed >= 0))
    throw input_error("gap, effort, rounds and listed must not be negative");
  return detail::with_algebra(options.warmup, options.epsilon, [&](auto algebra) {
    return detail::with_tables(hardware, costs, [&](const detail::interop_problem& placed, const auto& table) {
      using planner = detail::parallel_planner<std::remove_cvref_t<decltype(table)>, decltype(algebra), Costs>;
      return planner(hardware, costs, placed, table, algebra, problem, options).run();
    });
  });
}

/// Plans from the fastest to the cheapest, of which none is both slower and dearer than another: for deadlines in equal ratios
/// between the two, the cheapest plan that keeps it. Each plan's evidence holds for its own deadline. problem.objective does not
/// count; problem.deadline_s ends the frontier.
/// Returns: no more than `points` plans by rising iteration and falling cost, fewer if problem.progress stopped it; the refusal
/// if there is none.
/// Throws: as parallel_pipelines under the objective cost.
/// Complexity: no more than points + 1 times parallel_pipelines.
template <stage_cost_model Costs>
[[nodiscard]] outcome<std::vector<plan>> time_cost_frontier(const cluster& hardware, const Costs& costs, planning_problem problem,
                                                            parallel_pipelines_options options = {}, int points = 16) {
  problem.objective = plan_objective::cost;
  const double last_s = problem.deadline_s;
  problem.beat = std::numeric_limits<double>::infinity();
  validate(hardware, problem);
  if (points < 2) throw input_error("a frontier needs at least two points");
  std::vector<plan> found;
  const auto ask = [&](double deadline_s) -> const plan* {
    problem.deadline_s = deadline_s;
    auto next = parallel_pipelines(hardware, costs, problem, options);
    if (!next) return nullptr;
    options.start.push_back(next->pipelines);
    found.push_back(*std::move(next));
    return &found.back();
  };
  auto quick = problem;
  quick.objective = plan_objective::iteration;
  quick.deadline_s = std::numeric_limits<double>::infinity();
  const auto fastest = parallel_pipelines(hardware, costs, quick, options);
  if (!fastest) return fastest.why_not();
  const double fastest_s = fastest->predicted.iteration_s;
  options.start.push_back(fastest->pipelines);
  const auto* cheapest = ask(last_s);
  if (!cheapest) return detail::too_late(last_s, fastest_s);
  const double slowest_s = cheapest->predicted.iteration_s;
  const double ratio = std::pow(slowest_s / fastest_s, 1.0 / (points - 1));
  for (double deadline = slowest_s / ratio; ratio > 1 + 1e-9 && deadline > fastest_s * (1 - 1e-9);) {
    deadline = std::max(deadline, fastest_s);
    const auto* next = ask(deadline);
    const bool stopped = next && next->evidence && problem.progress && !problem.progress({0, "plans", objective_of(*next), 0});
    if (!next || stopped || deadline <= fastest_s) break;
    deadline = std::min(deadline / ratio, next->predicted.iteration_s * (1 - 1e-9));
    if (deadline < fastest_s && next->predicted.iteration_s > fastest_s * (1 + 1e-9)) deadline = fastest_s;
  }
  return cheaper_when_slower(std::move(found));
}

}  // namespace hetsched
