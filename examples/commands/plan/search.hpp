// SPDX-License-Identifier: Apache-2.0
// The search of hetsched-plan: over microbatch sizes, by one planner of a table, under the schedule that was asked for.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <hetsched/io/format.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/microbatch.hpp>
#include <hetsched/runtime/executor/thread_executor.hpp>

#include "../command.hpp"
#include "../costs.hpp"
#include "../interruption.hpp"
#include "planners.hpp"

namespace command {

struct plan_arguments {
  std::string cluster, model, out, report, trace, schedule, schedule_csv;
  std::string planner, microbatch_size, warmup = "exact";
  cost_choice costs;
  planner_options options;
  int global_batch = 0;
  int threads = 1;
  double time_budget_s = -1;  ///< below 0: none
  bool use_all_devices = false;
};

/// The size that --microbatch-size names; 0 for all powers of two.
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

/// The same stages under another schedule; refused where it takes more memory than there is.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> under_schedule(const hetsched::cluster& hardware, const any_costs& costs,
                                                                      hetsched::plan p, const std::string& name,
                                                                      const hetsched::evaluate_options& options) {
  for (auto& line : p.pipelines) {
    line.schedule = {.name = name};
    for (auto& s : line.stages) s.warmup = 0;
  }
  auto judged = evaluate(hardware, costs, std::move(p), options);
  if (!judged) return judged.why_not();
  if (!judged->shortage.empty())
    return hetsched::refusal{hetsched::refusal::kind::infeasible, "under schedule " + name + ", " + judged->shortage};
  return std::move(judged->plan);
}

/// The best plan over the microbatch sizes.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> search(const plan_arguments& given, const planner_entry& planner,
                                                              const hetsched::cluster& hardware, const cost_source& source) {
  using namespace hetsched;
  progress_line progress;
  listen_to_signals();
  const int one_size = fixed_microbatch_size(given, source);
  double best_rate = 0;                  // of the sizes before, samples per second
  std::optional<refusal> first_refusal;  // by the planner
  const auto go_on = [&] { return !interrupted() && (given.time_budget_s < 0 || progress.elapsed_s() < given.time_budget_s); };
  const auto plan_for = [&](const size_request& asked) -> outcome<plan> {
    const int size = asked.microbatch_size;
    const bool soon = asked.first_plan && given.schedule.empty();  // what another schedule makes of a plan takes the whole search
    if (const auto why = source.lacks(hardware, size); !why.empty()) return refusal{refusal::kind::infeasible, why};
    planning_problem problem{.microbatches = asked.microbatches, .microbatch_size = size};
    problem.beat_s = asked.beat_s;
    problem.use_all_devices = given.use_all_devices;
    problem.arithmetic = source.precision();
    problem.flops_per_sample = source.flops_per_sample();
    if (given.threads > 1) problem.parallel = thread_executor(given.threads);
    const auto tell = [&](const search_progress& state) {
      std::string text =
          "microbatch size " + std::to_string(size) + ": " + std::to_string(state.steps) + " " + std::string(state.unit) + ", ";
      double done = 0;
      if (std::isfinite(state.incumbent) && state.incumbent > 0) {
        done = std::clamp(state.bound / state.incumbent, 0.0, 1.0);
        text += "best " + format_seconds(state.incumbent) + ", bound " + format_seconds(state.bound) + ", " +
                gap_text(state.incumbent, state.bound);
      } else {
        text += "no plan yet";
      }
      if (best_rate > 0) text += "; sizes before: " + format_number(best_rate) + " samples per second";
      progress.show(done, text);
    };
    problem.progress = [&](const search_progress& state) {
      if (progress.due()) tell(state);
      return !soon && go_on();
    };
    const auto costs = source.costs(hardware, size);
    auto found = planner.make(hardware, costs, problem, given.options);
    const auto show_schedule = [&](double best_s, double bound_s) {
      progress.show(bound_s / best_s, "microbatch size " + std::to_string(size) + ": schedule " + given.schedule + ", best " +
                                          format_seconds(best_s) + ", bound " + format_seconds(bound_s) + ", " +
                                          gap_text(best_s, bound_s));
      return go_on();
    };
    if (found && !given.schedule.empty())
      found = under_schedule(hardware, costs, *std::move(found), given.schedule,
                             {.flops_per_sample = problem.flops_per_sample,
                              .arithmetic = problem.arithmetic,
                              .epsilon = given.options.epsilon,
                              .progress = show_schedule});
    if (found) {
      found->setting = source.setting(hardware);
      best_rate = std::max(best_rate, found->predicted.samples_per_s);
    } else if (!first_refusal) {
      first_refusal = found.why_not();
    }
    return found;
  };
  auto found = one_size > 0 ? plan_for({.microbatch_size = one_size, .microbatches = given.global_batch / one_size})
                            : best_microbatch_size(given.global_batch, plan_for, [&] { return go_on(); });
  if (!found && first_refusal) return *std::move(first_refusal);  // says more than a size without costs
  return found;
}

}  // namespace command
