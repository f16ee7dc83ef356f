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

namespace detail {

// The objective below which no plan is, priced as one pipeline, where none is below this one.
[[nodiscard]] inline double unspared(double objective, plan_objective kind, const price_book::sums_spared& spared) {
  if (kind == plan_objective::iteration) return objective + spared.seconds;
  return spared.share < 1 ? objective / (1 - spared.share) : infinity;
}

// What is proven by prices of one pipeline holds for several once they are spared these sums. Deadlines leave plans out by such
// prices, too, so that under one nothing is proven.
inline void spare(search_evidence& e, const planning_problem& problem, double gap, const price_book::sums_spared& spared) {
  for (double* bound : {&e.objective_bound, &e.sum_bound}) {
    if (problem.objective == plan_objective::iteration)
      *bound = std::max(0.0, *bound - spared.seconds);
    else
      *bound = problem.deadline_s < infinity ? 0 : *bound * (1 - spared.share);
  }
  e.complete = e.complete && std::min(e.objective_value, problem.beat) * (1 - gap) <= e.objective_bound * (1 + tolerance::sums);
}

}  // namespace detail

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
  if (!(options.rounds >= 0 && options.listed >= 0 && options.hopeless >= 0 && options.distant >= 0))
    throw input_error("rounds, listed, hopeless and distant must not be negative");
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) {
        // The tables' sums of gradients are those of one pipeline, and several add up less.
        const auto spared = problem.microbatches > 1 ? book.most_spared() : price_book::sums_spared{};
        if (spared.seconds == 0) return detail::parallel_planner(book, placed, table, algebra, problem, options).run();
        auto raised = problem;
        for (double* objective : {&raised.beat, &raised.enough})
          *objective = detail::unspared(*objective, problem.objective, spared);
        auto found = detail::parallel_planner(book, placed, table, algebra, raised, options).run();
        if (found && found->evidence) detail::spare(*found->evidence, problem, options.gap, spared);
        return found;
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
