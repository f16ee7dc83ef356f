// SPDX-License-Identifier: Apache-2.0
// hetsched-plan: cuts a model into pipeline stages over a mixed cluster.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <hetsched/io.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/plan/microbatch.hpp>
#include <hetsched/plan/predict.hpp>
#include <hetsched/plan/with_schedule.hpp>
#include <hetsched/runtime/thread_executor.hpp>

#include "command.hpp"
#include "costs.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string cluster, model, out, report, trace, schedule, schedule_csv;
  std::string planner = "interop_dp", microbatch_size = "1", warmup = "h1f1b";
  command::cost_choice costs;
  int global_batch = 0;
  int threads = 1;
  double epsilon = default_epsilon;
  double time_budget_s = 0;
  std::uint64_t seed = 0;
  bool use_all_devices = false, all_orders = false;
};

const std::map<std::string, warmup_rule> warmup_rules{{"h1f1b", warmup_rule::h1f1b},
                                                      {"exact", warmup_rule::exact},
                                                      {"1f1b", warmup_rule::one_f_one_b},
                                                      {"eager", warmup_rule::eager}};

/// The size that --microbatch-size names; 0 for auto.
int fixed_microbatch_size(const arguments& given) {
  const auto& text = given.microbatch_size;
  if (text == "auto") {
    if (!given.costs.profile.empty())
      throw input_error("--microbatch-size: auto needs the analytic costs; a profile holds those of one size");
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

/// The best plan over the microbatch sizes, with its MFU, under the schedule that was asked for.
outcome<scheduled_plan> search(const arguments& given, const cluster& hardware, const model_file& model) {
  command::progress_line progress;
  const int fixed_size = fixed_microbatch_size(given);
  std::map<int, schedule> orders;  // by microbatch size
  const auto plan_for = [&](int size, int microbatches) -> outcome<plan> {
    interop_options options{.microbatches = microbatches, .microbatch_size = size};
    options.warmup = warmup_rules.at(given.warmup);
    options.epsilon = given.epsilon;
    options.use_all_devices = given.use_all_devices;
    options.arithmetic = model.precision;
    if (given.all_orders) options.order = subcluster_order::all;
    if (given.threads > 1) options.parallel = thread_executor(given.threads);
    options.progress = [&](const search_progress& state) {
      const bool found = std::isfinite(state.best_s);
      progress.show(
          found && state.best_s > 0 ? std::clamp(state.bound_s / state.best_s, 0.0, 1.0) : 0.0,
          "microbatch size " + std::to_string(size) + ": " + std::to_string(state.evaluations) + " programs solved, " +
              (found ? "best " + format_seconds(state.best_s) + ", bound " + format_seconds(state.bound_s) : "no plan yet"));
      return given.time_budget_s <= 0 || progress.elapsed_s() < given.time_budget_s;
    };
    const auto costs = given.costs.costs(hardware, model, size);
    auto found = interop_dp(hardware, costs, options);
    if (!found || given.schedule.empty()) return found;
    auto scheduled =
        with_schedule(hardware, costs, *std::move(found), given.schedule, {.epsilon = given.epsilon}, model.precision);
    if (!scheduled) return scheduled.why_not();
    orders[size] = std::move(scheduled->order);
    return std::move(scheduled->plan);
  };
  auto best =
      fixed_size > 0 ? plan_for(fixed_size, given.global_batch / fixed_size) : best_microbatch_size(given.global_batch, plan_for);
  if (!best) return best.why_not();
  best->predicted.mfu = mfu(hardware, *best, training_flops(model.chain), model.precision);
  const auto& line = best->pipelines.front();
  auto order =
      given.schedule.empty() ? one_f_one_b(warmups(line), line.microbatches) : std::move(orders.at(line.microbatch_size));
  return scheduled_plan{.plan = *std::move(best), .order = std::move(order)};
}

struct device_use_text {
  std::string used, idle;
};

/// "3 of 12 in use", and the devices without a stage by subcluster: "idle: 4 v100, 5 a100".
device_use_text device_use(const cluster& hardware, const plan& p) {
  std::map<int, int> used;
  int total = 0;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages) {
      used[s.where.mesh.subcluster] += s.where.mesh.device_count();
      total += s.where.mesh.device_count();
    }
  std::string idle;
  for (int i = 0; i < static_cast<int>(hardware.subclusters.size()); ++i) {
    const auto& s = hardware.subclusters[static_cast<std::size_t>(i)];
    if (used[i] < s.device_count())
      idle += (idle.empty() ? "" : ", ") + std::to_string(s.device_count() - used[i]) + " " + s.name;
  }
  return {std::to_string(total) + " of " + std::to_string(hardware.device_count()) + " in use",
          idle.empty() ? "" : "idle: " + idle};
}

std::string summary(const cluster& hardware, const plan& p, warmup_rule searched) {
  const std::string rule(schedule_name(searched));
  const std::string searched_under = p.schedule == rule ? "" : " under " + rule;
  std::string text;
  const auto& line = p.pipelines.front();
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    const auto& s = line.stages[i];
    rows.push_back({std::to_string(i), layers_text(s.layers), devices_text(s, subcluster_of(hardware, s.where.mesh).name),
                    degrees_text(s.where.degrees), std::to_string(s.warmup), format_seconds(s.forward_s),
                    format_seconds(s.backward_s), i + 1 < line.stages.size() ? format_seconds(s.transfer_s) : "-",
                    format_bytes(s.memory_bytes) + " / " + format_bytes(s.memory_capacity_bytes)});
  }
  text += format_table(
              {">stage", ">layers", "devices", "degrees", ">warm-up", ">forward", ">backward", ">transfer", ">memory / device"},
              rows) +
          "\n";
  std::vector<std::vector<std::string>> figures;
  for (const auto& f : prediction_figures(p.predicted)) figures.push_back({f.label, f.value, f.note});
  const auto devices = device_use(hardware, p);
  figures.push_back({"devices", devices.used, devices.idle});
  figures.push_back({"search", p.evidence.complete ? "complete" : "stopped early",
                     "objective " + format_seconds(p.evidence.objective_s) + searched_under + ", no plan below " +
                         format_seconds(p.evidence.objective_bound_s)});
  text += format_table(
      {"schedule", p.schedule, std::to_string(line.microbatches) + " microbatches of " + std::to_string(line.microbatch_size)},
      figures);
  return text;
}

int plan_command(const arguments& given) {
  if (given.planner != "interop_dp") throw input_error("--planner: found " + given.planner + ", expected interop_dp");
  if (!(given.epsilon >= 0 && given.epsilon <= 1)) throw input_error("--epsilon: expected a number in [0, 1]");
  if (!(given.time_budget_s >= 0 && given.time_budget_s <= 1e9)) throw input_error("--time-budget: expected seconds in [0, 1e9]");
  command::outputs files;
  for (const auto& path : {given.out, given.report, given.trace, given.schedule_csv}) files.expect(path);
  if (!given.schedule.empty() && given.schedule != "auto") {
    const auto names = schedule_names();
    if (std::find(names.begin(), names.end(), given.schedule) == names.end())
      throw input_error("--schedule: found " + given.schedule + ", expected one of auto" + [&] {
        std::string known;
        for (const auto name : names) known += ", " + std::string(name);
        return known;
      }());
  }

  const auto hardware = read_cluster(given.cluster);
  const auto model = given.costs.read_model(given.model);
  const auto found = search(given, hardware, model);
  if (!found) {
    std::cerr << "hetsched-plan: no plan: " << found.why_not().reason << '\n';
    return command::infeasible;
  }
  const auto& best = found->plan;
  const auto& line = best.pipelines.front();
  files.add(given.out, to_json(best, subcluster_names(hardware)));
  if (!given.report.empty() || !given.trace.empty()) {
    auto played = simulate(to_pipeline(line), found->order);
    if (!given.trace.empty()) files.add(given.trace, chrome_trace(played.timeline));
    if (!given.report.empty()) {
      const auto devices = device_use(hardware, best);
      report page;
      page.title = "Training plan";
      page.summary = given.model + " on " + given.cluster + " (" + given.costs.text() +
                     "): " + std::to_string(line.microbatches) + " microbatches of " + std::to_string(line.microbatch_size) +
                     " per iteration, schedule " + best.schedule + ", planner " + best.planner + ". Devices: " + devices.used +
                     (devices.idle.empty() ? "." : ", " + devices.idle + ".");
      page.figures = prediction_figures(best.predicted);
      for (auto& figure : simulation_figures(played)) page.figures.push_back(std::move(figure));
      page.sections.push_back(
          plan_section(line, subcluster_names(hardware), std::move(played.timeline), best.predicted.period_s));
      files.add(given.report, to_html(page));
    }
  }
  if (!given.schedule_csv.empty()) files.add(given.schedule_csv, to_csv(found->order));
  files.write();
  std::cout << summary(hardware, best, warmup_rules.at(given.warmup)) << files.summary();
  if (best.predicted.mfu > 1)
    std::cerr << "hetsched-plan: an MFU above 100 % cannot be: do the costs belong to microbatches of " << line.microbatch_size
              << " samples, and to this model?\n";
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cuts a model into pipeline stages over a mixed cluster, and says what the plan will do.", "hetsched-plan");
  arguments given;
  app.add_option("--cluster", given.cluster, "cluster.json: what hardware there is")->required();
  app.add_option("--model", given.model, "model.json or a Hugging Face config.json: what is trained")->required();
  given.costs.add_options(app);
  app.add_option("--global-batch", given.global_batch, "samples per iteration")->required()->check(CLI::Range(1, 1'000'000));
  app.add_option("--microbatch-size", given.microbatch_size, "samples per microbatch, or auto: the best power of two")
      ->capture_default_str();
  app.add_option("--planner", given.planner, "interop_dp")->capture_default_str();
  app.add_option("--warmup", given.warmup, "rule for the microbatches in flight")
      ->check(command::one_of(warmup_rules))
      ->capture_default_str();
  app.add_option("--schedule", given.schedule,
                 "what the planned stages run: auto, or a name that hetsched-simulate takes; else the rule of --warmup");
  app.add_option("--schedule-csv", given.schedule_csv, "the schedule to write, one row per stage");
  app.add_option("--epsilon", given.epsilon, "h1f1b: share of the period that a transfer may take unnoticed")
      ->capture_default_str();
  app.add_flag("--use-all-devices", given.use_all_devices, "no device may stay idle");
  app.add_flag("--all-orders", given.all_orders, "try all orders of more than four subclusters, too");
  app.add_option("--seed", given.seed, "for planners that draw random numbers; interop_dp draws none");
  app.add_option("--time-budget", given.time_budget_s, "seconds after which the best plan so far is taken; 0: no limit");
  app.add_option("--threads", given.threads, "threads to search with; the plan does not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--out", given.out, "plan.json to write")->required();
  app.add_option("--report", given.report, "HTML report to write");
  app.add_option("--trace", given.trace, "Chrome trace to write (for ui.perfetto.dev)");
  return command::run(app, argc, argv, [&] { return plan_command(given); });
}
