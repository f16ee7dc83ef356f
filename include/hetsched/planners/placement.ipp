// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/planners/placement/detail/planner.hpp>
#include <hetsched/planners/placement/search.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

// ": they hold 81.5 GiB at least, and the devices have room for 70 GiB".
[[nodiscard]] inline std::string need_and_room(const placement_chain& chain) {
  double need = infinity;
  std::vector<double> room(chain.pools.size(), 0.0);
  for (const auto& kind : chain.kinds) {
    need = std::min(need, kind.state_before.back() + chain.in_flight(1) * kind.in_flight_before.back() * kind.memory.scale);
    auto& most = at(room, kind.pool);
    most = std::max(most, kind.memory.room);
  }
  double rooms = 0;
  for (std::size_t p = 0; p < room.size(); ++p) rooms += room[p] * chain.pools[p].count;
  return ": they hold " + in_gib(need) + " at least, and the devices have room for " + in_gib(rooms);
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> place_stages(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                           const placement_options& options) {
  if (!costs.additive()) throw input_error("placement needs costs that are sums over layers");
  const bool serves = is_inference(problem.objective);
  auto checked = problem;
  if (serves) checked.objective = plan_objective::iteration;
  validate_iteration(hardware, checked, "placement");
  validate(hardware);
  detail::validate_groups(hardware, options);
  price_book book(hardware, costs);
  const auto instance = detail::make_instance(book, problem, options);
  const refusal stopped{refusal::kind::stopped, "the search was stopped before it found stages"};
  if (!problem.may_go_on()) return stopped;
  const auto go_on = [&](std::int64_t labels) { return !problem.progress || problem.progress({labels, "labels", infinity, 0}); };
  auto found = problem.objective == plan_objective::latency ? least_sum(instance.chain, go_on, problem.poll())
               : problem.objective == plan_objective::throughput
                   ? least_interval(instance.chain, problem.microbatches, go_on, problem.poll())
                   : least_iteration(instance.chain, problem.microbatches, go_on, {}, problem.poll());
  if (!found.best) {
    if (!found.complete) return stopped;
    return refusal{refusal::kind::infeasible,
                   "the layers do not fit in the devices' memory as stages on " +
                       std::string(options.groups.empty() ? "single devices" : "the groups") + " that links join" +
                       (instance.chain.stages > 0 ? ", " + std::to_string(instance.chain.stages) + " of them" : "") +
                       detail::need_and_room(instance.chain)};
  }
  plan p{.planner = "placement", .objective = problem.objective};
  p.pipelines.push_back({.microbatches = problem.microbatches,
                         .microbatch_size = problem.microbatch_size,
                         .stages = instance.stages(*found.best),
                         .boundaries = {},
                         .schedule = {.name = std::string(forward_schedule_name)}});
  std::optional<evaluation> best;
  refusal why{refusal::kind::infeasible, ""};
  const auto consider = [&](outcome<evaluation> judged) {
    if (!judged)
      why = judged.why_not();
    else if (!judged->shortage.empty())
      why.reason = judged->shortage;
    else if (!best || objective_of(judged->plan) < objective_of(best->plan))
      best = *std::move(judged);
  };
  if (serves) {
    consider(evaluate_inference(hardware, costs, p));
  } else {
    for (const char* schedule : {"exact_1f1b", "h1f1b", "1f1b"}) {
      p.pipelines.front().schedule.name = schedule;
      consider(evaluate(hardware, costs, p, {.flops_per_sample = problem.flops_per_sample, .arithmetic = problem.arithmetic}));
    }
  }
  if (!best) return why;
  auto result = std::move(best->plan);
  const double value = objective_of(result);
  double bound = problem.objective == plan_objective::throughput ? found.bound / problem.microbatch_size : found.bound;
  if (problem.objective == plan_objective::latency && costs.tells_tokens() && costs.chunk_count() > 1) {
    // The search adds up pieces of the prompt that follow each other in truth.
    bound = 0;
    found.complete = false;
  }
  result.evidence = search_evidence{.objective_value = value,
                                    .objective_bound = std::min(value, bound),
                                    .complete = found.complete,
                                    .work = {{"labels", found.labels}}};
  return result;
}

}  // namespace hetsched
