// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/problem.hpp>
#include <hetsched/plan/tree_search.hpp>
#include <hetsched/planners/hetauto/decisions.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct hetauto_options {
  std::string schedule = "virtual_1f1b";  ///< of the plan, and what evaluate predicts with
  tree_search_options search = {};        ///< its progress and parallel are the problem's
};

/// Trains on one pipeline through subclusters, by tree search over HetAuto's decisions: whole layers, stages on one subcluster
/// each, those of a subcluster consecutive and with one placement. Every candidate is costed by evaluate under its schedule.
/// Returns: the best plan seen. Where the search saw everything, its evidence has objective_bound equal to objective_value: no
/// plan of this kind is better; else the bound is 0. A refusal if it saw no plan that holds the model.
/// Throws: input_error for options or costs out of range.
/// Complexity: O(placements * layers^2) questions to the costs, then one evaluation for each rollout.
/// Determinism: equal for every problem.parallel.
/// Source: HetAuto, section 4.1; the microbatches are those of the problem.
/// Example:
///     const auto found = hetauto(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> hetauto(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                    const hetauto_options& options = {}) {
  validate_iteration(hardware, problem, "hetauto");
  const detail::hetauto_decisions<Costs> decisions(hardware, costs, problem, options.schedule);
  auto search = options.search;
  search.progress = problem.progress;
  search.parallel = problem.parallel;
  const auto found = tree_search(decisions, search);
  if (!found.best) {
    if (found.complete)
      return refusal{refusal::kind::infeasible,
                     "no pipeline with one placement in each subcluster holds the model: memory is short, or links are missing"};
    return refusal{refusal::kind::stopped,
                   "the search ended after " + std::to_string(found.rollouts) + " rollouts, before it found a plan"};
  }
  auto best = std::move(decisions.judge(*found.best)->plan);
  best.evidence = {.objective_value = found.cost,
                   .objective_bound = found.complete ? found.cost : 0,
                   .complete = !found.stopped,
                   .work = {{"rollouts", found.rollouts}, {"nodes", found.nodes}}};
  return best;
}

}  // namespace hetsched
