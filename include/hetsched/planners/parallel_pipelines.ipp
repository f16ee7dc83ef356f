// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/parallel_pipelines/detail/planner.hpp>
#include <hetsched/search/frontier.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<plan> parallel_pipelines(const cluster& hardware, const any_cost_model& costs,
                                                 const planning_problem& problem, const parallel_pipelines_options& options) {
  price_book book(hardware, costs);
  return parallel_pipelines(book, problem, options);
}

HETSCHED_INLINE outcome<plan> parallel_pipelines(price_book& book, const planning_problem& problem,
                                                 const parallel_pipelines_options& options) {
  const auto& hardware = book.hardware();
  validate(hardware, problem);
  detail::expect_natural(options.gap, "gap");
  detail::expect_effort(options.effort, "effort");
  detail::expect_natural(options.near_tie, "near_tie");
  if (!(options.rounds >= 0 && options.listed >= 0 && options.hopeless >= 0))
    throw input_error("rounds, listed and hopeless must not be negative");
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) {
        return detail::parallel_planner(book, placed, table, algebra, problem, options).run();
      },
      problem.poll());
}

HETSCHED_INLINE outcome<std::vector<plan>> time_cost_frontier(const cluster& hardware, const any_cost_model& costs,
                                                              planning_problem problem, parallel_pipelines_options options,
                                                              int points) {
  problem.objective = plan_objective::cost;
  const double last_s = problem.deadline_s;
  problem.beat = infinity;
  validate(hardware, problem);
  if (points < 2) throw input_error("a frontier needs at least two points");
  price_book book(hardware, costs);
  std::vector<plan> found;
  const auto ask = [&](double deadline_s) -> const plan* {
    problem.deadline_s = deadline_s;
    auto next = parallel_pipelines(book, problem, options);
    if (!next) return nullptr;
    options.start.push_back(next->pipelines);
    found.push_back(*std::move(next));
    return &found.back();
  };
  auto quick = problem;
  quick.objective = plan_objective::iteration;
  quick.deadline_s = infinity;
  const auto fastest = parallel_pipelines(book, quick, options);
  if (!fastest) return fastest.why_not();
  const double fastest_s = fastest->predicted.iteration_s;
  options.start.push_back(fastest->pipelines);
  const auto* cheapest = ask(last_s);
  if (!cheapest) return detail::too_late(last_s, fastest_s);
  const double slowest_s = cheapest->predicted.iteration_s;
  const double ratio = std::pow(slowest_s / fastest_s, 1.0 / (points - 1));
  for (double deadline = slowest_s / ratio; ratio > 1 + tolerance::sums && deadline > fastest_s * (1 - tolerance::sums);) {
    deadline = std::max(deadline, fastest_s);
    const auto* next = ask(deadline);
    const bool stopped = next && next->evidence && problem.progress && !problem.progress({0, "plans", objective_of(*next), 0});
    if (!next || stopped || deadline <= fastest_s) break;
    deadline = std::min(deadline / ratio, next->predicted.iteration_s * (1 - tolerance::sums));
    if (deadline < fastest_s && next->predicted.iteration_s > fastest_s * (1 + tolerance::sums)) deadline = fastest_s;
  }
  return cheaper_when_slower(std::move(found));
}

}  // namespace hetsched
