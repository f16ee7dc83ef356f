// SPDX-License-Identifier: Apache-2.0
// The search of hetsched-plan: over microbatch sizes, by one planner of a table, under the schedule that was asked for.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/inference.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/planners.hpp>
#include <hetsched/runtime/executor/thread_executor.hpp>

#include "../command.hpp"
#include "../costs.hpp"
#include "../interruption.hpp"

namespace command {

struct plan_arguments {
  std::string cluster, model, out, report, trace, schedule, schedule_csv, frontier;
  std::string planner, microbatch_size, warmup = "exact", target_name;
  std::optional<hetsched::plan_target> target = {};  ///< of that name or file
  cost_choice costs;
  hetsched::planner_choice options;
  int global_batch = 0;
  int threads = 1;
  double time_budget_s = -1;  ///< below 0: none
  hetsched::inference_options serving;
  std::string products;  // of inference; empty: as the model's file says
  int in_flight = 0;     ///< batches of requests; 0: one, or for throughput as many as are best
  hetsched::plan_objective objective = hetsched::plan_objective::iteration;
  double deadline_s = hetsched::infinity;
  bool use_all_devices = false;
  bool mixed_stages = false;  ///< stages of unlike devices, too
  bool explain = false;
  std::vector<std::string> without = {};  ///< principles of hetauto
  double device_bias = 0;                 ///< share by which kinds of devices may be faster or slower than priced
  double quantile = 0;                    ///< of iterations with noise, to be least; 0: the iteration without noise
  double jitter = -1;                     ///< spread of the noise
  std::string sends;                      ///< empty: as the stack does
  int samples = 200;
  bool json = false;
};

/// What a plan was made from, for its page.
[[nodiscard]] inline std::string origin_of(const plan_arguments& given, const cost_source& source,
                                           const hetsched::cluster& hardware, bool trained = true) {
  return (given.model.empty() ? given.costs.profile : given.model) + " on " + given.cluster + " (" +
         source.text(hardware, trained) + "; " + cases_text(source.like_cases(hardware, trained)) + ")";
}

/// The size that --microbatch-size names; 0 for all that there are.
[[nodiscard]] inline int fixed_microbatch_size(const plan_arguments& given, const cost_source& source) {
  using hetsched::input_error;
  const auto& text = given.microbatch_size;
  if (text.empty()) return 0;
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

/// What fills the memory of every stage of every pipeline of a plan.
[[nodiscard]] inline std::vector<std::vector<hetsched::memory_use>> held_by(const plan_arguments& given,
                                                                            const cost_source& source,
                                                                            const hetsched::cluster& hardware,
                                                                            const hetsched::plan& p) {
  std::vector<std::vector<hetsched::memory_use>> held;
  const auto judged = evaluate(hardware, costs_on(hardware, source.priced()), p, {.epsilon = given.options.epsilon});
  if (!judged) return held;
  for (const auto& line : judged->pipelines) {
    held.emplace_back();
    for (const auto& s : line.stages) held.back().push_back(s.memory);
  }
  return held;
}

/// How a search judges plans, whose figures then are those of its plans.
[[nodiscard]] inline hetsched::evaluate_options judging(const plan_arguments& given, const cost_source& source) {
  return {
      .flops_per_sample = flops_per_sample(source.priced()), .arithmetic = source.precision(), .epsilon = given.options.epsilon};
}

/// The iteration of a plan whose ranks wait for what they send, as is asked for or as the stack does, if they wait.
[[nodiscard]] inline std::optional<double> iteration_with_sends(const plan_arguments& given, const hetsched::cluster& hardware,
                                                                const cost_source& source, const hetsched::plan& p) {
  using namespace hetsched;
  const auto sends = source.sends(given.sends, p);
  if (sends == send_mode::asynchronous) return std::nullopt;
  const auto judged = evaluate(hardware, costs_on(hardware, source.priced()), p, judging(given, source));
  if (!judged) throw input_error("--sends: " + judged.why_not().reason);
  return iteration_under(*judged, sends);
}

/// Whether a search may go on that has this share of the time.
[[nodiscard]] inline bool in_time(const plan_arguments& given, const progress_line& progress, double share = 1) {
  return !interrupted() && (given.time_budget_s < 0 || progress.elapsed_s() < share * given.time_budget_s);
}

/// Where a search stands, in words, and how much of it is done.
inline void show(progress_line& progress, hetsched::plan_objective objective, const hetsched::find_progress& at) {
  using namespace hetsched;
  const auto& state = at.search;
  const bool any = std::isfinite(state.incumbent) && state.incumbent > 0;
  if (at.microbatch_size == 0) {
    progress.show(0, std::to_string(state.steps) + " " + std::string(state.unit) + ", " +
                         (any ? "best " + format_objective(objective, state.incumbent) : std::string("no plan yet")));
    return;
  }
  std::string text = "microbatch size " + std::to_string(at.microbatch_size) + ": ";
  if (!at.schedule.empty()) {
    progress.show(state.bound / state.incumbent, text + "schedule " + std::string(at.schedule) + ", best " +
                                                     format_seconds(state.incumbent) + ", bound " + format_seconds(state.bound) +
                                                     ", " + gap_text(state.incumbent, state.bound));
    return;
  }
  text += std::to_string(state.steps) + " " + std::string(state.unit) + ", ";
  double done = 0;
  if (any) {
    done = std::clamp(state.bound / state.incumbent, 0.0, 1.0);
    text += "best " + format_objective(objective, state.incumbent) + ", " +
            (state.bound > 0 ? "search down to " + format_objective(objective, state.bound) : "search not bounded yet");
  } else {
    text += "no plan yet";
  }
  if (std::isfinite(at.before)) text += "; sizes before: " + format_objective(objective, at.before);
  progress.show(done, text);
}

/// What the library is asked for, but for what costs tell. Requires: all outlive it.
[[nodiscard]] inline hetsched::plan_request request_of(const plan_arguments& given, const cost_source& source,
                                                       const hetsched::cluster& hardware, progress_line& progress) {
  using namespace hetsched;
  plan_request request{.global_batch = given.global_batch, .microbatch_size = fixed_microbatch_size(given, source)};
  request.objective = given.objective;
  request.deadline_s = given.deadline_s;
  request.schedule = given.schedule;
  request.how = given.options;
  request.device_bias = given.device_bias;
  request.sends = source.trainer_sends(given.sends);
  request.use_all_devices = given.use_all_devices;
  request.mixed_stages = given.mixed_stages;
  request.target = given.target;
  request.lacks = [&](int size) { return source.lacks(hardware, size); };
  request.progress = [&, objective = given.objective](const find_progress& at) {
    if (progress.due() || !at.schedule.empty()) show(progress, objective, at);
  };
  // The rest of the time is for other planners, and for the sends of the plans that are met.
  const bool sent = *request.sends != send_mode::asynchronous && !is_inference(given.objective);
  const double share = sent && !given.options.published ? 0.4 : 1;
  request.go_on = [&, share] { return in_time(given, progress, share); };
  request.sends_go_on = [&](int looked_at, double best_s) {
    if (progress.due()) progress.show(0, "sends: " + std::to_string(looked_at) + " plans, best " + format_seconds(best_s));
    return in_time(given, progress);
  };
  if (given.time_budget_s > 0) request.spent = [&, share] { return progress.elapsed_s() / (share * given.time_budget_s); };
  request.wait_for_first = [] { return !interrupted(); };
  if (given.threads > 1) request.parallel = thread_executor(given.threads);
  return request;
}

/// The best plan over the microbatch sizes; all plans on the way are added to `all`.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> search(const plan_arguments& given, const hetsched::planner_entry& planner,
                                                              const hetsched::cluster& hardware, const cost_source& source,
                                                              progress_line& progress,
                                                              std::vector<hetsched::plan>* all = nullptr) {
  listen_to_signals();
  auto request = request_of(given, source, hardware, progress);
  if (all) request.met = [all](const hetsched::plan& p) { all->push_back(p); };
  return find_plan(hardware, source.priced(), request, planner);
}

/// The plan that loses least where kinds of devices are faster or slower than priced.
[[nodiscard]] inline hetsched::outcome<hetsched::unbiased_plan> search_unbiased(const plan_arguments& given,
                                                                                const hetsched::planner_entry& planner,
                                                                                const hetsched::cluster& hardware,
                                                                                const cost_source& source,
                                                                                progress_line& progress) {
  listen_to_signals();
  auto request = request_for(hardware, source.priced(), request_of(given, source, hardware, progress));
  request.go_on = [&] { return in_time(given, progress); };
  if (given.time_budget_s > 0) request.spent = [&] { return progress.elapsed_s() / given.time_budget_s; };
  return find_unbiased_plan(hardware, request, planner);
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
  options.sends = source.trainer_sends(given.sends);
  options.how = judging(given, source);
  options.go_on = [&](int looked_at, double best_s) {
    if (progress.due())
      progress.show(0, "noise: " + std::to_string(looked_at) + " plans, best " + format_percent(given.quantile) + " quantile " +
                           format_seconds(best_s));
    return in_time(given, progress);
  };
  auto found = most_robust_plan(hardware, costs_on(hardware, source.priced()), std::move(plans), options);
  if (found) found->plan.setting = setting_of(hardware, source.priced());
  return found;
}

/// The frontier of time against money, of all microbatch sizes together; with a plan that belongs on it.
[[nodiscard]] inline std::vector<hetsched::plan> search_frontier(const plan_arguments& given,
                                                                 const hetsched::planner_entry& planner,
                                                                 const hetsched::cluster& hardware, const cost_source& source,
                                                                 const hetsched::plan& known, progress_line& progress) {
  auto request = request_for(hardware, source.priced(), request_of(given, source, hardware, progress));
  request.go_on = [&] { return in_time(given, progress); };  // nothing is searched for after it
  request.progress = [&](const hetsched::find_progress& at) {
    if (progress.due())
      progress.show(0, "frontier, microbatch size " + std::to_string(at.microbatch_size) + ": " +
                           std::to_string(at.search.steps) + " " + std::string(at.search.unit));
  };
  return find_frontier(hardware, costs_on(hardware, source.priced()), request, planner, known);
}

}  // namespace command
