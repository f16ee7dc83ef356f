// SPDX-License-Identifier: Apache-2.0
// The search of hetsched-plan: over microbatch sizes, by one planner of a table, under the schedule that was asked for.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cost/models/inference.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/planners/any_schedule.hpp>
#include <hetsched/runtime/executor/thread_executor.hpp>
#include <hetsched/search/frontier.hpp>
#include <hetsched/search/microbatch.hpp>
#include <hetsched/search/mixed_costs.hpp>
#include <hetsched/search/taper.hpp>

#include "../command.hpp"
#include "../costs.hpp"
#include "../interruption.hpp"
#include "planners.hpp"

namespace command {

struct plan_arguments {
  std::string cluster, model, out, report, trace, schedule, schedule_csv, frontier;
  std::string planner, microbatch_size, warmup = "exact";
  cost_choice costs;
  planner_options options;
  int global_batch = 0;
  int threads = 1;
  double time_budget_s = -1;  ///< below 0: none
  hetsched::inference_options serving;
  int in_flight = 0;  ///< batches of requests; 0: one, or for throughput as many as are best
  hetsched::plan_objective objective = hetsched::plan_objective::iteration;
  double deadline_s = std::numeric_limits<double>::infinity();
  bool use_all_devices = false;
  bool mixed_stages = false;  ///< stages of unlike devices, too
  bool explain = false;
  std::vector<std::string> without = {};  ///< principles of hetauto
  double quantile = 0;                    ///< of iterations with noise, to be least; 0: the iteration without noise
  double jitter = -1;                     ///< spread of the noise
  int samples = 200;
  bool json = false;
};

/// What a plan was made from, for its page.
[[nodiscard]] inline std::string origin_of(const plan_arguments& given, const cost_source& source,
                                           const hetsched::cluster& hardware) {
  return (given.model.empty() ? given.costs.profile : given.model) + " on " + given.cluster + " (" + source.text(hardware) + ")";
}

/// The size that --microbatch-size names; 0 for all divisors of the batch.
[[nodiscard]] inline int fixed_microbatch_size(const plan_arguments& given, const cost_source& source) {
  using hetsched::input_error;
  const auto& text = given.microbatch_size;
  if (text.empty()) return source.of_shapes() ? 1 : 0;
  if (text == "auto") {
    if (source.of_shapes())
      throw input_error(
          "--microbatch-size: auto needs formulas, or a profile of version 2; one of version 1 holds the costs of one size");
    return 0;
  }
  int size = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (wrong != std::errc{} || end != text.data() + text.size() || size < 1)
    throw input_error("--microbatch-size: found " + text + ", expected a whole number of at least 1, or auto");
  if (given.global_batch % size != 0)
    throw input_error("--microbatch-size: " + text + " does not divide the global batch of " +
                      std::to_string(given.global_batch));
  return size;
}

/// The costs of a model on a cluster, by microbatch size, each made once; copies share them, also between threads.
class sized_costs {
 public:
  /// Requires: both outlive this.
  sized_costs(const hetsched::cluster& hardware, const cost_source& source)
      : hardware_(&hardware), source_(&source), made_(std::make_shared<shared>()) {}
  const hetsched::any_cost_model& operator()(int size) const {
    const std::lock_guard lock(made_->one_at_a_time);
    const auto known = made_->by_size.find(size);
    return known != made_->by_size.end() ? known->second
                                         : made_->by_size.emplace(size, source_->costs(*hardware_, size)).first->second;
  }

 private:
  struct shared {
    std::mutex one_at_a_time;
    std::map<int, hetsched::any_cost_model> by_size;
  };
  const hetsched::cluster* hardware_;
  const cost_source* source_;
  std::shared_ptr<shared> made_;
};

/// The same devices under another schedule, with the planned layers or with such as suit schedules that keep more microbatches in
/// flight; or, unless all devices are to be used or money counts, one pipeline on any devices that suits these: if they are
/// faster by 0.1 % or more. Refused where it takes more memory than there is.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> under_schedule(const hetsched::cluster& hardware, const sized_costs& costs,
                                                                      hetsched::plan p, const std::string& name,
                                                                      const hetsched::evaluate_options& options,
                                                                      bool on_any_devices) {
  using namespace hetsched;
  for (auto& line : p.pipelines) {
    line.schedule = {.name = name};
    for (auto& s : line.stages) s.warmup = 0;
  }
  std::optional<plan> best;
  const auto consider = [&](plan candidate) -> outcome<evaluation> {
    auto judged = evaluate(hardware, costs, std::move(candidate), options);
    if (judged && judged->shortage.empty() && (!best || objective_of(judged->plan) < 0.999 * objective_of(*best)))
      best = judged->plan;
    return judged;
  };
  const auto planned = consider(p);
  constexpr std::array hastes{1.0, 2.0, 4.0};
  std::array<plan, hastes.size()> recut{p, p, p};
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto own = tapered(hardware, costs(p.pipelines[l].microbatch_size), p.pipelines[l], hastes);
    for (std::size_t h = 0; h < own.size(); ++h) recut[h].pipelines[l] = own[h];
  }
  for (auto& candidate : recut)
    if (candidate.pipelines != p.pipelines) (void)consider(std::move(candidate));
  const int size = p.pipelines.front().microbatch_size, samples = static_cast<int>(sample_count(p));
  if (on_any_devices && samples % size == 0) {
    // A schedule that splits backwards may be faster than the bound of whole ones: a third of the way back, as a rule.
    constexpr double split = 1.5;
    std::vector<any_schedule_options> ways;
    for (const double haste : hastes)
      for (const int in_flight : {1, static_cast<int>(p.pipelines.front().stages.size())})
        ways.push_back({.microbatches = samples / size,
                        .haste = haste,
                        .in_flight = in_flight,
                        .below_s = best ? split * haste * objective_of(*best) : 0});
    if (const auto found = any_schedule_pipelines(hardware, costs(size), ways))
      for (const auto& line : *found) {
        if (!line) continue;
        auto candidate = p;
        candidate.pipelines.assign(1, line->line);
        candidate.pipelines[0].microbatch_size = size;
        candidate.pipelines[0].schedule = {.name = name};
        (void)consider(std::move(candidate));
      }
  }
  if (best) return *std::move(best);
  if (!planned) return planned.why_not();
  return refusal{refusal::kind::infeasible, "under schedule " + name + ", " + planned->shortage};
}

/// What fills the memory of every stage of every pipeline of a plan.
[[nodiscard]] inline std::vector<std::vector<hetsched::memory_use>> held_by(const plan_arguments& given,
                                                                            const cost_source& source,
                                                                            const hetsched::cluster& hardware,
                                                                            const hetsched::plan& p) {
  std::vector<std::vector<hetsched::memory_use>> held;
  const auto judged = evaluate(hardware, sized_costs(hardware, source), p, {.epsilon = given.options.epsilon});
  if (!judged) return held;
  for (const auto& line : judged->pipelines) {
    held.emplace_back();
    for (const auto& s : line.stages) held.back().push_back(s.memory);
  }
  return held;
}

/// What a planner is asked for a microbatch size.
[[nodiscard]] inline hetsched::planning_problem problem_for(const plan_arguments& given, const cost_source& source, int size) {
  hetsched::planning_problem problem{.microbatches = given.global_batch / size, .microbatch_size = size};
  problem.objective = given.objective;
  problem.deadline_s = given.deadline_s;
  problem.use_all_devices = given.use_all_devices;
  problem.arithmetic = source.precision();
  problem.flops_per_sample = source.flops_per_sample();
  if (given.threads > 1) problem.parallel = hetsched::thread_executor(given.threads);
  return problem;
}

/// Whether a search may go on.
[[nodiscard]] inline bool in_time(const plan_arguments& given, const progress_line& progress) {
  return !interrupted() && (given.time_budget_s < 0 || progress.elapsed_s() < given.time_budget_s);
}

/// The plan of a planner that decides about microbatches by itself.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> search_batch(const plan_arguments& given, const planner_entry& planner,
                                                                    const hetsched::cluster& hardware, const cost_source& source,
                                                                    progress_line& progress) {
  using namespace hetsched;
  const std::string objective(name_of(given.objective));
  auto problem = problem_for(given, source, 1);
  problem.progress = [&](const search_progress& state) {
    if (progress.due())
      progress.show(0, std::to_string(state.steps) + " " + std::string(state.unit) + ", " +
                           (std::isfinite(state.incumbent) ? "best " + format_objective(objective, state.incumbent)
                                                           : std::string("no plan yet")));
    return in_time(given, progress);
  };
  const sized_costs costs(hardware, source);
  auto found = planner.of_batch(
      hardware, [&](int size) -> const hetsched::any_cost_model& { return costs(size); }, given.global_batch, problem,
      given.options);
  if (found) found->setting = source.setting(hardware);
  return found;
}

/// The best plan over the microbatch sizes; all plans on the way are added to `all`.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> search(const plan_arguments& given, const planner_entry& planner,
                                                              const hetsched::cluster& hardware, const cost_source& source,
                                                              progress_line& progress,
                                                              std::vector<hetsched::plan>* all = nullptr) {
  using namespace hetsched;
  listen_to_signals();
  const int one_size = fixed_microbatch_size(given, source);
  if (planner.of_batch && one_size == 0 && !given.mixed_stages && (given.schedule.empty() || has_warmups(given.schedule))) {
    auto found = search_batch(given, planner, hardware, source, progress);
    if (found && all) all->push_back(*found);
    if (found || found.why_not().why == refusal::kind::stopped) return found;
    // Else the search of each size tells more.
  }
  std::optional<double> best_before;     // objective of the sizes before
  std::optional<refusal> first_refusal;  // by the planner
  std::map<int, outcome<plan>> whole;    // sizes that were searched to the end at once
  std::map<int, std::vector<pipeline_plan>> first_look;
  bool hurry = true;          // first looks may end without an answer
  std::vector<int> given_up;  // sizes where one has
  const std::string objective(name_of(given.objective));
  const auto go_on = [&] { return in_time(given, progress); };
  const auto plan_for = [&](const size_request& asked) -> outcome<plan> {
    const int size = asked.microbatch_size;
    // What another schedule makes of a plan, and a cheap plan that is in time, takes the whole search.
    const bool soon = hurry && asked.first_plan && given.schedule.empty() && given.objective == plan_objective::iteration &&
                      !given.mixed_stages;
    if (const auto known = whole.find(size); known != whole.end()) return known->second;
    if (const auto why = source.lacks(hardware, size); !why.empty()) return refusal{refusal::kind::infeasible, why};
    auto problem = problem_for(given, source, size);
    problem.beat = asked.beat;
    const auto tell = [&](const search_progress& state) {
      std::string text =
          "microbatch size " + std::to_string(size) + ": " + std::to_string(state.steps) + " " + std::string(state.unit) + ", ";
      double done = 0;
      if (std::isfinite(state.incumbent) && state.incumbent > 0) {
        done = std::clamp(state.bound / state.incumbent, 0.0, 1.0);
        text +=
            "best " + format_objective(objective, state.incumbent) + ", " +
            (state.bound > 0 ? "bound " + format_objective(objective, state.bound) + ", " + gap_text(state.incumbent, state.bound)
                             : "no bound yet");
      } else {
        text += "no plan yet";
      }
      if (best_before) text += "; sizes before: " + format_objective(objective, *best_before);
      progress.show(done, text);
    };
    problem.progress = [&](const search_progress& state) {
      if (progress.due()) tell(state);
      return !soon && go_on();
    };
    const sized_costs costs_for(hardware, source);
    const auto& costs = costs_for(size);
    auto options = given.options;
    if (const auto known = first_look.find(size); known != first_look.end()) options.known = known->second;
    if (asked.best) options.similar = with_microbatch_size(*asked.best, size).value_or(std::vector<pipeline_plan>{});
    auto found = planner.make(hardware, costs, problem, options);
    if (found && soon) first_look[size] = found->pipelines;
    if (given.mixed_stages) {
      options.known.clear();
      found = with_mixed_stages(
          hardware, costs_for, problem,
          {.flops_per_sample = problem.flops_per_sample, .arithmetic = problem.arithmetic, .epsilon = given.options.epsilon},
          std::move(found), [&](const cluster& seen, const auto& mixed, const planning_problem& asked_again) {
            return planner.make(seen, mixed, asked_again, options);
          });
    }
    const auto show_schedule = [&](double best_s, double bound_s) {
      progress.show(bound_s / best_s, "microbatch size " + std::to_string(size) + ": schedule " + given.schedule + ", best " +
                                          format_seconds(best_s) + ", bound " + format_seconds(bound_s) + ", " +
                                          gap_text(best_s, bound_s));
      return go_on();
    };
    const auto runs_already = [&] {
      const auto& lines = found->pipelines;
      return std::all_of(lines.begin(), lines.end(), [&](const auto& line) { return line.schedule.name == given.schedule; });
    };
    if (found && !given.schedule.empty() && !runs_already())
      found = under_schedule(hardware, costs_for, *std::move(found), given.schedule,
                             {.flops_per_sample = problem.flops_per_sample,
                              .arithmetic = problem.arithmetic,
                              .epsilon = given.options.epsilon,
                              .progress = show_schedule},
                             !given.use_all_devices && given.objective == plan_objective::iteration);
    if (found) {
      found->setting = source.setting(hardware);
      best_before = std::min(best_before.value_or(objective_of(*found)), objective_of(*found));
      if (all) all->push_back(*found);
    } else {
      if (!first_refusal) first_refusal = found.why_not();
      if (soon && found.why_not().why == refusal::kind::stopped && go_on()) {
        given_up.push_back(size);  // the other sizes have their turn first
        return refusal{refusal::kind::infeasible, found.why_not().reason};
      }
    }
    if (asked.first_plan && !soon) whole.emplace(size, found);
    return found;
  };
  auto found = one_size > 0 ? plan_for({.microbatch_size = one_size, .microbatches = given.global_batch / one_size})
                            : best_microbatch_size(given.global_batch, plan_for, [&] { return go_on(); });
  hurry = false;
  for (const int size : given_up) {
    const plan* best = found ? &*found : nullptr;
    auto again = plan_for({.microbatch_size = size,
                           .microbatches = given.global_batch / size,
                           .beat = best ? objective_of(*best) : std::numeric_limits<double>::infinity(),
                           .best = best});
    if (!again && again.why_not().why != refusal::kind::stopped) continue;
    // What is known of all sizes together.
    std::optional<search_evidence> both;
    if (found && found->evidence && again && again->evidence) {
      both = found->evidence;
      both->objective_bound = std::min(both->objective_bound, again->evidence->objective_bound);
      both->complete = both->complete && (again->evidence->complete || again->evidence->objective_bound >= objective_of(*found));
    } else if (found && found->evidence) {
      both = found->evidence;
      both->objective_bound = 0;
      both->complete = false;
    }
    if (again && (!found || objective_of(*again) < objective_of(*found))) found = std::move(again);
    if (found && both) {
      both->objective_value = objective_of(*found);
      found->evidence = both;
    }
    if (!found) found = std::move(again);
  }
  if (!found && first_refusal) return *std::move(first_refusal);  // says more than a size without costs
  return found;
}

/// The plan whose quantile of noisy iterations is least, from those that the search has found on.
[[nodiscard]] inline hetsched::outcome<hetsched::robust_plan> search_robust(const plan_arguments& given,
                                                                            const hetsched::cluster& hardware,
                                                                            const cost_source& source,
                                                                            std::vector<hetsched::plan> plans,
                                                                            progress_line& progress) {
  using namespace hetsched;
  robust_options options{
      .share = given.quantile, .spread = given.jitter, .samples = given.samples, .seed = given.options.seed + 1};
  options.how = {
      .flops_per_sample = source.flops_per_sample(), .arithmetic = source.precision(), .epsilon = given.options.epsilon};
  options.go_on = [&](int looked_at, double best_s) {
    if (progress.due())
      progress.show(0, "noise: " + std::to_string(looked_at) + " plans, best " + format_percent(given.quantile) + " quantile " +
                           format_seconds(best_s));
    return in_time(given, progress);
  };
  auto found = most_robust_plan(hardware, sized_costs(hardware, source), std::move(plans), options);
  if (found) found->plan.setting = source.setting(hardware);
  return found;
}

/// The frontier of time against money, of all microbatch sizes together; with a plan that belongs on it.
[[nodiscard]] inline std::vector<hetsched::plan> search_frontier(const plan_arguments& given, const planner_entry& planner,
                                                                 const hetsched::cluster& hardware, const cost_source& source,
                                                                 const hetsched::plan& known, progress_line& progress) {
  using namespace hetsched;
  const int one_size = fixed_microbatch_size(given, source);
  std::vector<plan> all{known};
  for (const int size : one_size > 0 ? std::vector{one_size} : microbatch_sizes(given.global_batch)) {
    if (!in_time(given, progress)) break;
    if (source.lacks(hardware, size).empty()) {
      auto problem = problem_for(given, source, size);
      problem.objective = plan_objective::cost;
      problem.progress = [&](const search_progress& state) {
        if (progress.due())
          progress.show(0, "frontier, microbatch size " + std::to_string(size) + ": " + std::to_string(state.steps) + " " +
                               std::string(state.unit));
        return in_time(given, progress);
      };
      if (auto found = planner.frontier(hardware, source.costs(hardware, size), problem, given.options))
        for (auto& p : *found) {
          p.setting = source.setting(hardware);
          all.push_back(std::move(p));
        }
    }
  }
  return cheaper_when_slower(std::move(all));
}

}  // namespace command
