// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/hetauto/decisions.hpp>
#include <hetsched/planners/hetauto/detail/any_size.hpp>
#include <hetsched/planners/hetauto/exact.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>
#include <hetsched/search/microbatch.hpp>
#include <hetsched/search/problem.hpp>
#include <hetsched/search/tree_search.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct hetauto_options {
  std::string schedule = "virtual_1f1b";                             ///< of the plan, and what evaluate predicts with
  hetauto_principles principles = {};                                ///< fewer leave more plans
  tree_search_options search = {.exploration = 0.3, .greedy = 0.9};  ///< its progress and parallel are the problem's
};

namespace detail {

/// The best plan that a tree search over the decisions sees, or why there is none.
template <class Decisions>
[[nodiscard]] outcome<plan> searched_plan(const Decisions& decisions, const planning_problem& problem,
                                          tree_search_options search) {
  search.progress = problem.progress;
  search.parallel = problem.parallel;
  const auto found = tree_search(decisions, search);
  if (!found.best) {
    if (found.complete)
      return refusal{refusal::kind::infeasible,
                     "no pipeline of this kind holds the model: memory is short, or links are missing"};
    return refusal{refusal::kind::stopped,
                   "the search ended after " + std::to_string(found.rollouts) + " rollouts, before it found a plan"};
  }
  auto best = *decisions.plan_of(*found.best);
  best.evidence = {.objective_value = found.cost,
                   .objective_bound = found.complete ? found.cost : 0,
                   .complete = !found.stopped,
                   .work = {{"rollouts", found.rollouts}, {"nodes", found.nodes}}};
  return best;
}

}  // namespace detail

/// Trains on one pipeline through subclusters, by tree search over HetAuto's decisions: whole layers, stages on one subcluster
/// each, those of a subcluster consecutive and with one placement, as far as options.principles ask for it. Candidates that a
/// closed form does not rule out are costed by evaluate under their schedule.
/// Returns: the best plan seen. Where the search saw everything, its evidence has objective_bound equal to objective_value: no
/// plan of this kind is better; else the bound is 0. A refusal if it saw no plan that holds the model.
/// Throws: input_error for options or costs out of range.
/// Complexity: as with_tables; then for each rollout O(layers * stages), and an evaluation where it may be the best.
/// Determinism: equal for every problem.parallel.
/// Source: HetAuto, section 4.1; the microbatches are those of the problem: hetauto_of_batch decides them, too.
/// Example:
///     const auto found = hetauto(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> hetauto(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                    const hetauto_options& options = {}) {
  validate_iteration(hardware, problem, "hetauto");
  return detail::with_tables(hardware, costs, [&](const detail::interop_problem& placed, const auto& table) -> outcome<plan> {
    using decisions_type = detail::hetauto_decisions<std::remove_cvref_t<decltype(table)>, Costs>;
    const decisions_type decisions(hardware, costs, placed, table, problem, options.schedule, options.principles);
    return detail::searched_plan(decisions, problem, options.search);
  });
}

/// hetauto where the number of microbatches is a decision of the tree, too, as in the paper: behind the number of stages, one of
/// those that cut the batch into equal microbatches. `costs_for(size)`: costs of microbatches of so many samples, which stay
/// where they are until the end. The problem's own microbatches count for nothing. Returns, throws, complexity, determinism: as
/// hetauto, with tables for each size. Throws input_error, too, for a batch below 1. Source: HetAuto, section 4.1. Example:
///     const auto found = hetauto_of_batch(hardware, [&](int size) -> const auto& { return costs.at(size); }, 512, {});
template <class CostsFor>
[[nodiscard]] outcome<plan> hetauto_of_batch(const cluster& hardware, const CostsFor& costs_for, int batch,
                                             const planning_problem& problem, const hetauto_options& options = {}) {
  using costs_type = std::remove_cvref_t<decltype(costs_for(1))>;
  static_assert(stage_cost_model<costs_type> && std::is_reference_v<decltype(costs_for(1))>);
  validate_iteration(hardware, problem, "hetauto");
  if (batch < 1) throw input_error("the global batch must be at least 1");
  std::deque<detail::sized_decisions<costs_type>> sizes;
  std::vector<const typename detail::sized_decisions<costs_type>::decisions_type*> decisions;
  for (const int size : microbatch_sizes(batch)) {
    const auto& costs = costs_for(size);
    auto placed = detail::make_interop_problem(hardware, costs);
    if (placed.placements.empty()) continue;
    auto asked = problem;
    asked.microbatch_size = size;
    asked.microbatches = batch / size;
    decisions.push_back(
        &*sizes.emplace_back(hardware, costs, std::move(placed), std::move(asked), options.schedule, options.principles)
              .decisions);
  }
  if (decisions.empty())
    return refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"};
  return detail::searched_plan(detail::any_size_decisions(std::move(decisions)), problem, options.search);
}

/// The best plan of hetauto's space, with a bound. The search works on
///     sum (t_i + 2 c_i) + (M - 1) * period + end of updates,
/// as interop_dp's: ranges of periods get a bound each, the least latency of all pipelines with one placement in each subcluster
/// at their longest period, which a shortest path finds; evaluate judges the plans met. Small problems are counted.
/// Returns: the plan, as evaluate fills it in, under the schedule of the warm-up rule, with the bound of the search, which means
/// what interop_dp's means; the best so far if problem.progress stopped it; else why there is none.
/// Throws: input_error for options or costs out of range, and for more than ten subclusters.
/// Complexity: at most options.periods paths, of O(2^K L (P S W + C^2)) for K subclusters, L layers, P placements, S stages on a
/// subcluster of W layers, and C transfer classes.
/// Determinism: the plan depends on the arguments only.
/// Source: HetAuto, section 4.1 (the space).
/// Example:
///     const auto found = hetauto_exact(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> hetauto_exact(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                          const hetauto_exact_options& options = {}) {
  validate_iteration(hardware, problem, "hetauto_exact");
  if (!(options.near_tie >= 0 && options.gap >= 0 && options.enumeration >= 0))
    throw input_error("near_tie, gap and enumeration must not be negative");
  if (options.periods < 1) throw input_error("periods must be at least 1");
  if (hardware.subclusters.size() > 10)
    throw input_error("hetauto_exact looks at all sets of subclusters, at most ten, found " +
                      std::to_string(hardware.subclusters.size()));
  return detail::with_algebra(options.warmup, options.epsilon, [&](auto algebra) {
    return detail::with_tables(hardware, costs, [&](const detail::interop_problem& placed, const auto& table) {
      using planner = detail::uniform_planner<std::remove_cvref_t<decltype(table)>, decltype(algebra), Costs>;
      return planner(hardware, costs, placed, table, algebra, problem, options).run();
    });
  });
}

}  // namespace hetsched
