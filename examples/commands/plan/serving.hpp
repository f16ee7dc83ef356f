// SPDX-License-Identifier: Apache-2.0
// hetsched-plan for inference: stages by the planner placement, and what they do for requests.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cost/inference.hpp>
#include <hetsched/io.hpp>
#include <hetsched/planners/placement.hpp>

#include "../command.hpp"
#include "pages.hpp"
#include "search.hpp"

namespace command {

/// What is printed of a plan for inference.
[[nodiscard]] inline std::string serving_summary(const hetsched::cluster& hardware, const hetsched::plan& p) {
  using namespace hetsched;
  const auto& line = p.pipelines.front();
  const auto names = subcluster_names(hardware);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    const auto& s = line.stages[i];
    rows.push_back({std::to_string(i), layers_text(s.layers), devices_text(s, names), format_seconds(s.cost.forward_s),
                    i < line.boundaries.size() ? format_seconds(line.boundaries[i].forward_s) : "-",
                    format_bytes(s.memory_bytes) + " / " + format_bytes(s.memory_capacity_bytes)});
  }
  std::vector<std::vector<std::string>> figures;
  for (const auto& f : prediction_figures(p.predicted)) figures.push_back({f.label, f.value, f.note});
  const auto devices = device_use(hardware, p);
  figures.push_back({"devices", devices.used, devices.idle});
  figures.push_back({"search", p.evidence->complete ? "complete" : "incomplete", evidence_text(p, "")});
  const auto in_flight = std::to_string(line.microbatches) + " in flight, of " + std::to_string(line.microbatch_size);
  return format_table({">stage", ">layers", "devices", ">time / batch", ">transfer", ">memory / device"}, rows) + "\n" +
         format_table({"batches", in_flight, ""}, figures);
}

/// hetsched-plan under an objective of inference.
[[nodiscard]] inline int plan_serving(const plan_arguments& given, const cost_source& source, const hetsched::cluster& hardware,
                                      outputs& files) {
  using namespace hetsched;
  if (!given.planner.empty() && given.planner != "placement")
    throw input_error("--objective " + std::string(name_of(given.objective)) + ": only the planner placement plans inference");
  for (const auto& [option, value] : {std::pair{"--report", &given.report},
                                      {"--trace", &given.trace},
                                      {"--schedule", &given.schedule},
                                      {"--schedule-csv", &given.schedule_csv},
                                      {"--frontier", &given.frontier}})
    if (!value->empty())
      throw input_error(std::string(option) + " is for training, not for --objective " + std::string(name_of(given.objective)));
  const auto costs = source.serving(hardware, given.serving);
  listen_to_signals();
  progress_line progress;
  planning_problem problem{.microbatch_size = given.serving.batch};
  problem.objective = given.objective;
  problem.use_all_devices = given.use_all_devices;
  problem.progress = [&](const search_progress& state) {
    if (progress.due()) progress.show(0, std::to_string(state.steps) + " " + std::string(state.unit));
    return in_time(given, progress);
  };
  const auto place = [&](int in_flight) {
    problem.microbatches = in_flight;
    return place_stages(hardware, costs, problem, {.stages = given.options.stages});
  };
  auto found = place(std::max(1, given.in_flight));
  // More in flight keep more stages busy, until their caches take the memory that layers need.
  if (given.in_flight == 0 && given.objective == plan_objective::throughput)
    for (int more = 2; found && more <= 2 * hardware.device_count() && in_time(given, progress); more *= 2) {
      auto next = place(more);
      if (!next) break;
      if (objective_of(*next) < objective_of(*found)) found = std::move(next);
    }
  if (!found) {
    std::cerr << "hetsched-plan: no plan: " << found.why_not().reason << '\n';
    return infeasible;
  }
  found->setting = source.setting(hardware);
  found->setting.sequence = given.serving.prompt_tokens + given.serving.output_tokens;
  files.add(given.out, to_json(*found, hardware));
  files.write();
  std::cout << serving_summary(hardware, *found) << files.summary();
  return done;
}

}  // namespace command
