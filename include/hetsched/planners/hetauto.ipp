// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hetauto/detail/any_size.hpp>
#include <hetsched/planners/hetauto/detail/decisions.hpp>
#include <hetsched/planners/hetauto/detail/exact.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>
#include <hetsched/planners/interop_dp/detail/iteration_bound.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/search/microbatch.hpp>
#include <hetsched/search/problem.hpp>
#include <hetsched/search/tree_search.hpp>

namespace hetsched {

namespace detail {

inline constexpr double tree_search_gap = 0.001;  // within which a tree search's plan is told to be the best

/// The best plan that a tree search over the decisions sees, or why there is none: what why_none() says, if anything.
/// bound(seconds): what no plan is below, where one of that iteration is known.
template <class Decisions, class WhyNone, class Bound>
[[nodiscard]] outcome<plan> searched_plan(const Decisions& decisions, const planning_problem& problem, tree_search_options search,
                                          const std::string& schedule, WhyNone why_none, Bound bound) {
  search.progress = problem.progress;
  search.go_on = problem.go_on;
  search.parallel = problem.parallel;
  const auto found = tree_search(decisions, search);
  if (!found.best) {
    if (auto why = found.stopped ? std::optional<refusal>() : why_none()) return *std::move(why);
    if (found.complete)
      return refusal{refusal::kind::infeasible,
                     "no pipeline of HetAuto's kind holds the model, though there is one of another kind: interop_dp finds such"};
    return refusal{refusal::kind::stopped,
                   "the search ended after " + std::to_string(found.rollouts) + " rollouts, before it found a plan"};
  }
  auto best = *decisions.plan_of(*found.best);
  const double proved = bound(found.cost);
  best.evidence = {.objective_value = found.cost,
                   .objective_bound = proved,
                   .complete = found.cost * (1 - tree_search_gap) <= proved * (1 + tolerance::sums),
                   .work = {{"rollouts", found.rollouts}, {"nodes", found.nodes}},
                   .sum_bound = found.complete ? found.cost : 0,
                   .rule = schedule,
                   .space = "one pipeline, on any devices in any order"};
  return best;
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> hetauto(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                      const hetauto_options& options) {
  validate_iteration(hardware, problem, "hetauto");
  const auto schedule = schedule_named(options.schedule);
  price_book book(hardware, costs);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) -> outcome<plan> {
        const detail::hetauto_decisions decisions(hardware, costs, placed, table, problem, schedule, options.principles);
        const auto bound = [&](double seconds) {
          auto ask = [&] { return problem.may_go_on(); };
          return detail::least_iteration(placed, table, hardware, costs, problem.microbatches, seconds, detail::tree_search_gap,
                                         ask, problem.enough);
        };
        const auto why_none = [&] { return detail::why_no_pipeline(hardware, costs, placed, table, problem); };
        return detail::searched_plan(decisions, problem, options.search, options.schedule, why_none, bound);
      },
      problem.poll());
}

HETSCHED_INLINE outcome<plan> hetauto_of_batch(const cluster& hardware, const costs_by_size& costs_for, int batch,
                                               const planning_problem& problem, const hetauto_options& options) {
  validate_iteration(hardware, problem, "hetauto");
  if (batch < 1) throw input_error("the global batch must be at least 1");
  const auto schedule = schedule_named(options.schedule);
  std::deque<detail::sized_decisions> sizes;
  std::vector<const detail::hetauto_decisions*> decisions;
  for (const int size : microbatch_sizes(batch)) {
    const auto costs = costs_for(size);
    price_book book(hardware, costs);
    auto placed = detail::make_interop_problem(book, problem.poll());
    if (!problem.may_go_on()) break;
    if (placed.placements.empty()) continue;
    auto asked = problem;
    asked.microbatch_size = size;
    asked.microbatches = batch / size;
    decisions.push_back(&*sizes.emplace_back(book, std::move(placed), std::move(asked), schedule, options.principles).decisions);
  }
  if (decisions.empty() && !problem.may_go_on()) return detail::stopped_early();
  if (decisions.empty())
    return refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"};
  const auto bound = [&](double seconds) {
    double least = seconds;
    auto ask = [&] { return problem.may_go_on(); };
    for (const auto& s : sizes)
      least = std::min(least, detail::least_iteration(s.placed, s.table, hardware, costs_for(s.asked.microbatch_size),
                                                      s.asked.microbatches, least, detail::tree_search_gap, ask, problem.enough));
    return least;
  };
  const auto why_none = [&] {
    // The smallest microbatches take the least memory.
    const auto& smallest = sizes.front();
    const auto costs = costs_for(smallest.asked.microbatch_size);
    return detail::why_no_pipeline(hardware, costs, smallest.placed, smallest.table, smallest.asked);
  };
  return detail::searched_plan(detail::any_size_decisions(std::move(decisions)), problem, options.search, options.schedule,
                               why_none, bound);
}

HETSCHED_INLINE outcome<plan> hetauto_exact(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                            const hetauto_exact_options& options) {
  price_book book(hardware, costs);
  return hetauto_exact(book, problem, options);
}

HETSCHED_INLINE outcome<plan> hetauto_exact(price_book& book, const planning_problem& problem,
                                            const hetauto_exact_options& options) {
  const auto& hardware = book.hardware();
  validate_iteration(hardware, problem, "hetauto_exact");
  detail::expect_natural(options.near_tie, "near_tie");
  detail::expect_natural(options.gap, "gap");
  detail::expect_effort(options.effort, "effort");
  detail::expect_effort(options.enumeration, "enumeration");
  detail::expect_natural(options.hope, "hope");
  if (options.periods < 1) throw input_error("periods must be at least 1");
  if (hardware.subclusters.size() > 10)
    return refusal{refusal::kind::not_applicable,
                   "hetauto_exact looks at all sets of subclusters, of ten at most; this cluster has " +
                       std::to_string(hardware.subclusters.size())};
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) -> outcome<plan> {
        constexpr double most_states = 4e6;  // some hundred megabytes
        if (detail::uniform_path::states(placed) > most_states)
          return refusal{refusal::kind::not_applicable, "hetauto_exact looks at all sets of subclusters, for which " +
                                                            std::to_string(hardware.subclusters.size()) + " with " +
                                                            std::to_string(placed.classes()) + " kinds of placements and " +
                                                            std::to_string(placed.layers) + " layers are too many"};
        return detail::uniform_planner(hardware, book.costs(), placed, table, algebra, problem, options).run();
      },
      problem.poll());
}

}  // namespace hetsched
