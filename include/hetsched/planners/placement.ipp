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
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/planners/interop_dp/detail/iteration_bound.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/parallel_pipelines/detail/candidates.hpp>
#include <hetsched/planners/parallel_pipelines/detail/stage_orders.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/planners/placement/detail/planner.hpp>
#include <hetsched/planners/placement/search.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

// ": these take 81.5 GiB at least, and the devices have room for 70 GiB", if that is why.
[[nodiscard]] inline std::string need_and_room(const placement_chain& chain) {
  double need = infinity;
  std::vector<double> room(chain.pools.size(), 0.0);
  for (const auto& kind : chain.kinds) {
    need = std::min(need, kind.state({0, chain.layers}) + chain.in_flight(1) * kind.in_flight_before.back() * kind.memory.scale);
    auto& most = at(room, kind.pool);
    most = std::max(most, kind.memory.room);
  }
  double rooms = 0;
  for (std::size_t p = 0; p < room.size(); ++p) rooms += room[p] * chain.pools[p].count;
  if (need <= rooms) return "";
  return ": these take " + in_gib(need) + " at least, and the devices have room for " + in_gib(rooms);
}

[[nodiscard]] inline refusal not_additive() {
  return {refusal::kind::not_applicable, "placement needs costs that are sums over layers"};
}

[[nodiscard]] inline refusal stopped_before_stages() {
  return {refusal::kind::stopped, "the search was stopped before it found stages"};
}

/// Why there are no stages; `complete`: whether the search was not ended.
[[nodiscard]] inline refusal no_stages(const cluster& hardware, const placement_chain& chain, const placement_options& options,
                                       bool complete) {
  if (!complete) return stopped_before_stages();
  const auto links = missing_links(hardware);
  return {refusal::kind::infeasible, "no " + (chain.stages > 0 ? std::to_string(chain.stages) + " " : std::string()) +
                                         "stages on " + std::string(options.groups.empty() ? "single devices" : "the groups") +
                                         " that links join hold the layers" + need_and_room(chain) +
                                         (links.empty() ? "" : "; there is no link between " + links)};
}

/// The plan of training, from the stages that a search of sums over stages has found, if any: other orders, cuts and warm-ups are
/// played, as the sum is not the iteration.
[[nodiscard]] inline outcome<plan> trained(price_book& book, const planning_problem& asked, const placement_options& options,
                                           const std::vector<pipeline_plan>* known, std::int64_t labels,
                                           function_ref<refusal()> none) {
  const auto& hardware = book.hardware();
  // Tables of large clusters take seconds.
  if (!asked.may_go_on()) {
    if (!known) return stopped_before_stages();
    auto judged = evaluate(hardware, book.costs(), {.planner = "placement", .pipelines = *known},
                           {.flops_per_sample = asked.flops_per_sample, .arithmetic = asked.arithmetic});
    if (!judged || !judged->shortage.empty()) return stopped_before_stages();
    auto soon = std::move(judged->plan);
    const double value = objective_of(soon);
    soon.evidence =
        search_evidence{.objective_value = value, .objective_bound = 0, .complete = false, .work = {{"labels", labels}}};
    return soon;
  }
  return with_tables(book, [&](interop_problem problem, const stage_prices& table) -> outcome<plan> {
    for (auto& p : problem.placements) {
      const auto& mesh = p.where.mesh;
      const submesh own = options.groups.empty() ? submesh{mesh.subcluster, 1, 1} : at(options.groups, mesh.subcluster);
      if (!(mesh == own)) p.barred = p.dominated = true;
    }
    const warmup_algebra algebra(warmup_rule::exact, default_epsilon);
    const end_table ends(book.costs(), problem);
    const auto no_candidates = [&] {
      return plan_candidates(hardware, book.costs(), problem, table, ends, algebra, asked, warmup_rule::exact, default_epsilon);
    };
    auto found = no_candidates(), of_sum = no_candidates();
    if (known) found.consider({.pipelines = *known});
    auto problem_of_sum = asked;
    // Few devices are looked at to the end: what is known of other microbatch sizes changes no stages.
    constexpr int few = 16;
    const bool few_devices = hardware.device_count() <= few;
    if (few_devices) problem_of_sum.beat = infinity;
    bool stopped = false;
    problem_of_sum.progress = [&](const search_progress& state) {
      stopped = stopped || (asked.progress && !asked.progress(state));
      return !stopped;
    };
    auto go_on = [&] {
      const double best_s = std::min(found.best_s(), of_sum.best_s());
      return !stopped && asked.may_go_on() && !(asked.progress && !asked.progress({labels, "labels", best_s, 0}));
    };
    // Which of the two leads further cannot be told from where they begin; the first one takes less time.
    const auto change = [&](plan_candidates& from) {
      constexpr std::int64_t most_looks = 50'000'000;  // some tenths of a second
      if (options.stages == 0)
        stage_order_search(problem, table, hardware, book.costs(), from, go_on).run(most_looks, few_devices);
    };
    change(found);
    const auto sum =
        one_pipeline_search(hardware, book.costs(), problem, table, algebra, problem_of_sum, {.prove = false, .rows = false});
    if (!sum && sum.why_not().why == refusal::kind::stopped && !found.best()) return sum.why_not();
    if (sum && (options.stages == 0 || static_cast<int>(sum->pipelines.front().stages.size()) == options.stages))
      of_sum.keep(*sum);
    if (!found.best() && !of_sum.best()) return none();
    constexpr double gap = 0.001;
    change(of_sum);
    if (of_sum.best()) found.keep(*of_sum.best());
    const double value = found.best_s(), reached = std::min(value, asked.beat);
    const double bound = options.prove ? least_iteration(problem, table, hardware, book.costs(), asked.microbatches, reached, gap,
                                                         go_on, asked.enough)
                                       : 0;
    auto best = *std::move(found.best());
    best.planner = "placement";
    best.evidence = search_evidence{.objective_value = value,
                                    .objective_bound = std::min(value, bound),
                                    .complete = reached * (1 - gap) <= bound * (1 + tolerance::sums),
                                    .work = {{"labels", labels}, {"plans", found.plans()}},
                                    .space = options.groups.empty() ? "one pipeline of single devices, in any order"
                                                                    : "one pipeline of such groups of devices, in any order"};
    return best;
  });
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> place_stages(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                           const placement_options& options) {
  if (!costs.additive()) return detail::not_additive();
  validate_iteration(hardware, problem, "placement");
  validate(hardware);
  detail::validate_groups(hardware, options);
  price_book book(hardware, costs);
  const auto in_flight = [most = problem.microbatches](int n) { return static_cast<double>(std::min(n, most)); };
  const auto instance = detail::make_instance(
      book, {.in_flight = in_flight, .use_all_devices = problem.use_all_devices, .go_on = problem.poll()}, options);
  if (!problem.may_go_on()) return detail::stopped_before_stages();
  const auto go_on = [&](std::int64_t labels) { return !problem.progress || problem.progress({labels, "labels", infinity, 0}); };
  const auto found = least_iteration(instance.chain, problem.microbatches, go_on, {}, problem.poll());
  std::vector<pipeline_plan> known;
  if (found.best)
    known.push_back({.microbatches = problem.microbatches,
                     .microbatch_size = problem.microbatch_size,
                     .stages = instance.stages(*found.best),
                     .boundaries = {},
                     .schedule = {.name = std::string(schedule_name(warmup_rule::exact))}});
  const auto none = [&] { return detail::no_stages(hardware, instance.chain, options, found.complete); };
  return detail::trained(book, problem, options, known.empty() ? nullptr : &known, found.labels, none);
}

HETSCHED_INLINE outcome<inference_plan> place_inference(const cluster& hardware, const any_cost_model& costs,
                                                        const inference_problem& problem, const placement_options& options) {
  if (!costs.additive()) return detail::not_additive();
  if (!is_inference(problem.objective))
    throw input_error("place_inference plans for latency or throughput, not for " + std::string(name_of(problem.objective)));
  if (problem.in_flight < 1 || problem.batch_size < 1) throw input_error("in_flight and batch_size must be at least 1");
  if (problem.parts < 0) throw input_error("the number of parts must not be negative");
  validate(hardware, planning_problem{});
  validate(hardware);
  detail::validate_groups(hardware, options);
  price_book book(hardware, costs);
  const auto in_flight = [all = problem.in_flight](int) { return static_cast<double>(all); };
  const auto poll = problem.go_on ? function_ref<bool()>(problem.go_on) : function_ref<bool()>();
  const auto instance = detail::make_instance(
      book,
      {.serves = true, .in_flight = in_flight, .use_all_devices = problem.use_all_devices, .parts = problem.parts, .go_on = poll},
      options);
  if (poll && !poll()) return detail::stopped_before_stages();
  const auto go_on = [&](std::int64_t labels) { return !problem.progress || problem.progress({labels, "labels", infinity, 0}); };
  const bool soonest = problem.objective == plan_objective::latency;
  auto found = soonest ? least_sum(instance.chain, go_on, poll) : least_interval(instance.chain, problem.in_flight, go_on, poll);
  if (!found.best) return detail::no_stages(hardware, instance.chain, options, found.complete);
  auto judged = evaluate_inference(hardware, costs,
                                   {.planner = "placement",
                                    .objective = problem.objective,
                                    .in_flight = problem.in_flight,
                                    .batch_size = problem.batch_size,
                                    .stages = instance.stages(*found.best)});
  if (!judged) return judged.why_not();
  if (!judged->shortage.empty()) return refusal{refusal::kind::infeasible, std::move(judged->shortage)};
  auto result = std::move(judged->plan);
  const double value = objective_of(result);
  double bound = soonest ? found.bound : found.bound / problem.batch_size;
  if (soonest && costs.tells_tokens() && costs.chunk_count() > 1) {
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
