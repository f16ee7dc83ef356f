// SPDX-License-Identifier: Apache-2.0
// What hetsched-plan tells of a plan: tables for people, a report, a trace.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/page/frontier_svg.hpp>
#include <hetsched/io/page/memory_svg.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/plan/nccl_channels.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/plan/transport.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../costs.hpp"
#include "../count_text.hpp"
#include "../names.hpp"

namespace command {

/// How many devices of each subcluster have a stage; of those that have any.
[[nodiscard]] inline std::map<int, int> used_devices(const hetsched::plan& p) {
  std::map<int, int> used;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) used[g.mesh.subcluster] += g.mesh.device_count();
  return used;
}

/// The boundary between stage `i` and the next; null after the last stage, and before evaluate.
[[nodiscard]] inline const hetsched::boundary_plan* boundary_behind(const hetsched::pipeline_plan& line, std::size_t i) {
  return i < line.boundaries.size() ? &line.boundaries[i] : nullptr;
}

struct device_use_text {
  std::string used, idle;
};

/// The same of a plan for inference.
[[nodiscard]] inline std::map<int, int> used_devices(const hetsched::inference_plan& p) {
  std::map<int, int> used;
  for (const auto& s : p.stages)
    for (const auto& g : s.devices) used[g.mesh.subcluster] += g.mesh.device_count();
  return used;
}

/// "3 of 12 in use", and the devices without a stage by subcluster: "idle: 4 v100, 5 a100".
[[nodiscard]] inline device_use_text device_use(const hetsched::cluster& hardware, std::map<int, int> used) {
  int total = 0;
  std::vector<std::string> idle;
  for (int i = 0; i < static_cast<int>(hardware.subclusters.size()); ++i) {
    const auto& s = hardware.subclusters[static_cast<std::size_t>(i)];
    total += used[i];
    if (used[i] < s.device_count()) idle.push_back(std::to_string(s.device_count() - used[i]) + " " + s.name);
  }
  return {std::to_string(total) + " of " + std::to_string(hardware.device_count()) + " in use",
          idle.empty() ? "" : "idle: " + listed(idle)};
}

/// "64 microbatches of 1", for each pipeline.
[[nodiscard]] inline std::string batch_text(const hetsched::plan& p) {
  std::string text;
  for (const auto& line : p.pipelines)
    text += (text.empty() ? "" : " + ") + command::count_text(line.microbatches, "microbatch") + " of " +
            std::to_string(line.microbatch_size);
  return text;
}

/// The schedules of the pipelines, each once.
[[nodiscard]] inline std::string schedules_text(const hetsched::plan& p) {
  std::vector<std::string> names;
  for (const auto& line : p.pipelines)
    if (std::find(names.begin(), names.end(), line.schedule.name) == names.end()) names.push_back(line.schedule.name);
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// "22 v100, 1 a100": the devices in use.
[[nodiscard]] inline std::string devices_in_use(const hetsched::cluster& hardware, const hetsched::plan& p) {
  std::string text;
  for (const auto& [subcluster, count] : used_devices(p))
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " +
            hardware.subclusters[static_cast<std::size_t>(subcluster)].name;
  return text;
}

/// Money for an iteration of a plan that costs so much per sample.
[[nodiscard]] inline double per_iteration(const hetsched::plan& p, double cost_per_sample) {
  return cost_per_sample * static_cast<double>(sample_count(p));
}

/// An objective in words: money per iteration, or seconds.
[[nodiscard]] inline std::string objective_text(const hetsched::plan& p, double value) {
  return p.objective == hetsched::plan_objective::cost ? hetsched::format_money(per_iteration(p, value)) + " per iteration"
                                                       : hetsched::format_objective(p.objective, value);
}

/// The same of inference: seconds.
[[nodiscard]] inline std::string objective_text(const hetsched::inference_plan& p, double value) {
  return hetsched::format_objective(p.objective, value);
}

/// What an iteration costs with its sends, where plans were chosen by cost.
[[nodiscard]] inline std::string sent_cost_text(const hetsched::plan& p, std::optional<double> held_up_s) {
  const auto& own = p.predicted;
  if (!held_up_s || p.objective != hetsched::plan_objective::cost || !own.cost_per_sample) return "";
  return "and costs " + hetsched::format_money(per_iteration(p, *own.cost_per_sample * *held_up_s / own.iteration_s)) + "\n";
}

/// The plans of a frontier, whose iterations with their sends take so long and cost as much more.
[[nodiscard]] inline std::vector<hetsched::plan> as_sent(std::vector<hetsched::plan> plans,
                                                         const std::vector<std::optional<double>>& held_up_s) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!held_up_s[i]) continue;
    auto& own = plans[i].predicted;
    const double longer = *held_up_s[i] / own.iteration_s;
    own.iteration_s = *held_up_s[i];
    own.samples_per_s /= longer;
    *own.cost_per_sample *= longer;
  }
  return plans;
}

/// The plans of a frontier, one row each, as a table; `chosen` has a star.
[[nodiscard]] inline std::string frontier_text(const hetsched::cluster& hardware, const std::vector<hetsched::plan>& plans,
                                               const hetsched::plan& chosen) {
  using namespace hetsched;
  std::vector<std::vector<std::string>> rows;
  for (const auto& p : plans)
    rows.push_back({format_seconds(p.predicted.iteration_s), format_money(per_iteration(p, *p.predicted.cost_per_sample)),
                    p.objective == plan_objective::cost && p.evidence && p.evidence->objective_bound > 0
                        ? format_money(per_iteration(p, p.evidence->objective_bound))
                        : "-",
                    p.setting.sequence > 0 ? format_money(*p.predicted.cost_per_sample / p.setting.sequence * 1e6) : "-",
                    format_number(p.predicted.samples_per_s), std::to_string(p.pipelines.size()),
                    std::to_string(p.pipelines.front().microbatch_size), devices_in_use(hardware, p),
                    p.pipelines == chosen.pipelines ? "*" : ""});
  return format_table(
      {">iteration", ">its cost", ">none below", ">per million tokens", ">samples/s", ">pipelines", ">microbatch", "devices", ""},
      rows);
}

/// The same as a picture.
[[nodiscard]] inline std::string frontier_picture(const hetsched::cluster& hardware, const std::vector<hetsched::plan>& plans,
                                                  const hetsched::plan& chosen) {
  std::vector<hetsched::frontier_point> points;
  for (const auto& p : plans)
    points.push_back({p.predicted.iteration_s, per_iteration(p, *p.predicted.cost_per_sample), devices_in_use(hardware, p),
                      p.pipelines == chosen.pipelines});
  return hetsched::frontier_svg(std::move(points));
}

/// One row per stage, one table per pipeline.
[[nodiscard]] inline std::string stages_text(const hetsched::cluster& hardware, const hetsched::plan& p) {
  using namespace hetsched;
  const auto names = subcluster_names(hardware);
  std::string text;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    std::vector<std::vector<std::string>> rows;
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      const auto& s = line.stages[i];
      const auto* const boundary = boundary_behind(line, i);
      rows.push_back({std::to_string(i), layers_text(s.layers), devices_text(s, names), degrees_text(s), std::to_string(s.warmup),
                      format_seconds(s.cost.forward_s), format_seconds(s.cost.backward_s),
                      boundary ? transfer_text(*boundary) : "-",
                      format_bytes(s.memory_bytes) + " / " + format_bytes(s.memory_capacity_bytes)});
    }
    if (p.pipelines.size() > 1)
      text += "pipeline " + std::to_string(l) + ": " + command::count_text(line.microbatches, "microbatch") + " of " +
              std::to_string(line.microbatch_size) + "\n";
    text += format_table(
                {">stage", ">layers", "devices", "degrees", ">warm-up", ">forward", ">backward", ">transfer", ">memory / device"},
                rows) +
            "\n";
  }
  return text;
}

/// Whether the search has shown its plan to be the best: "proven within 0.4 %", "done, not proven", or "stopped". More than this
/// share is not told as a proof. `held_up_s`: the iteration that plans were chosen by, where sends hold ranks up.
inline constexpr double telling_gap = 0.0105;
[[nodiscard]] inline std::string search_state(const hetsched::search_evidence& e, std::optional<double> held_up_s = {}) {
  const double value = held_up_s.value_or(e.objective_value);
  const double gap = e.objective_bound > 0 ? std::max(0.0, 1 - e.objective_bound / value) : 1;
  if (gap <= telling_gap) return gap <= 1e-9 ? "proven" : "proven within " + hetsched::format_percent(std::max(gap, 0.0005));
  return e.stopped ? "stopped" : "done, not proven";
}

/// "objective 4.01 s, no plan below 3.98 s (gap 0.8 %): one pipeline, on any devices in any order"; of either kind of plan. With
/// `held_up_s`: "objective 4.01 s, with sends 4.20 s, no plan below 3.98 s (gap 5.2 %): ...".
template <class Plan>
[[nodiscard]] std::string evidence_text(const Plan& p, std::optional<double> held_up_s = {}) {
  const auto& e = *p.evidence;
  const double value = held_up_s.value_or(e.objective_value);
  const auto text =
      "objective " + objective_text(p, e.objective_value) + (held_up_s ? ", with sends " + objective_text(p, *held_up_s) : "");
  if (!(e.objective_bound > 0)) return text + ", no bound";
  return text + ", no plan below " + objective_text(p, e.objective_bound) +
         (value <= e.objective_bound * 1.0005 ? "" : " (" + hetsched::gap_text(value, e.objective_bound) + ")") +
         (e.space.empty() ? "" : ": " + e.space);
}

/// "30,532,122,624".
[[nodiscard]] inline std::string digits_text(std::int64_t count) {
  auto text = std::to_string(count);
  for (auto i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > 0; i -= 3) text.insert(static_cast<std::size_t>(i), ",");
  return text;
}

/// What the plan was searched for; else which targets run it as it is, which in their own way and which not, with what is in the
/// way of the first: "hetsched, torch; not megatron (stage 1: a begin inside block 17), deepspeed".
[[nodiscard]] inline std::vector<std::string> target_row(const hetsched::cluster& hardware, const hetsched::plan& p) {
  using namespace hetsched;
  if (!p.setting.target.empty()) {
    const auto known = find_plan_target(p.setting.target);
    return {"target", p.setting.target, known ? known->program : ""};
  }
  std::array<std::vector<std::string>, 3> groups;
  for (const auto& t : plan_targets()) {
    const auto found = gaps(p, t, hardware);
    auto& own = groups[found.empty() ? 0 : found.front().runs_anyway ? 1 : 2];
    const bool first = own.empty() && !found.empty();
    own.push_back(t.name + (first ? " (" + found.front().place + ": " + found.front().found + ")" : ""));
  }
  std::string text;
  for (const auto& [how, names] : {std::pair{"", &groups[0]}, {"in their own way ", &groups[1]}, {"not ", &groups[2]}})
    if (!names->empty()) text += (text.empty() ? "" : "; ") + (how + listed(*names));
  return {"runs in", std::to_string(groups[0].size()) + " of " + std::to_string(plan_targets().size()), text};
}

/// What is printed. `costs`: those of the plan; `held_up_s`: an iteration whose sends hold ranks up; `split_s`: one that splits
/// backwards.
[[nodiscard]] inline std::string summary(const hetsched::cluster& hardware, const hetsched::plan& p, const cost_source& costs,
                                         std::optional<double> held_up_s = {}, std::optional<double> split_s = {}) {
  using namespace hetsched;
  std::vector<std::vector<std::string>> figures;
  for (const auto& f : prediction_figures(p.predicted, p.setting.sequence)) figures.push_back({f.label, f.value, f.note});
  if (p.setting.sequence > 0 && p.predicted.samples_per_s > 0)
    figures.push_back({"tokens", format_number(p.predicted.samples_per_s * p.setting.sequence),
                       "per second, with " + std::to_string(p.setting.sequence) + " per sample"});
  const auto devices = device_use(hardware, used_devices(p));
  figures.push_back({"devices", devices.used, devices.idle});
  if (costs.model()) figures.push_back({"parameters", digits_text(parameter_count(costs.model()->chain)), "of the model"});
  if (!costs.measured() && !p.setting.precision.empty())
    figures.push_back({"precision", p.setting.precision, costs.precision_text(hardware)});
  if (p.setting.stack) figures.push_back({"stack", p.setting.stack->name, costs.stack_bytes_text()});
  figures.push_back({"costs", p.setting.costs, costs.basis_text(hardware)});
  if (const auto links = costs.links_text(hardware); !links.empty()) figures.push_back({"links", "Gbit/s", links});
  if (split_s)
    figures.push_back(
        {"zero bubble", format_seconds(*split_s),
         format_percent(1 - *split_s / p.predicted.iteration_s) + " less, by --schedule auto: it splits backwards"});
  figures.push_back(target_row(hardware, p));
  const auto schedules = schedules_text(p);
  if (p.objective != plan_objective::iteration) held_up_s.reset();  // of which its evidence is not
  if (p.evidence) figures.push_back({"search", search_state(*p.evidence, held_up_s), evidence_text(p, held_up_s)});
  return stages_text(hardware, p) + format_table({"schedule", schedules, batch_text(p)}, figures);
}

/// What to know of links between subclusters that several pairs of stages use: where one wire for all, in place of one for each
/// pair of nodes as costs have it, would be busy for longer than the iteration. Requires: evaluated, of training.
[[nodiscard]] inline std::vector<std::string> shared_links(const hetsched::cluster& hardware, const hetsched::plan& p) {
  using namespace hetsched;
  struct use {
    int pairs = 0;
    double there_s = 0, back_s = 0;  // from the subcluster that the file has first, and to it
  };
  std::map<std::pair<int, int>, use> links;
  for (const auto& line : p.pipelines)
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      const auto& s = line.stages[i];
      const auto* const boundary = boundary_behind(line, i);
      if (!boundary) continue;
      const int from = s.devices.back().mesh.subcluster, to = line.stages[i + 1].devices.front().mesh.subcluster;
      if (from == to) continue;
      auto& link = links[std::minmax(from, to)];
      const double forward_s = boundary->forward_occupied_s.value_or(boundary->forward_s),
                   backward_s = boundary->backward_occupied_s.value_or(boundary->backward_s);
      ++link.pairs;
      link.there_s += line.microbatches * (from < to ? forward_s : backward_s);
      link.back_s += line.microbatches * (from < to ? backward_s : forward_s);
    }
  const auto names = subcluster_names(hardware);
  std::vector<std::string> told;
  for (const auto& [ends, link] : links)
    if (const double busy_s = std::max(link.there_s, link.back_s); link.pairs > 1 && busy_s > p.predicted.iteration_s)
      told.push_back("between " + names[static_cast<std::size_t>(ends.first)] + " and " +
                     names[static_cast<std::size_t>(ends.second)] + ": " + std::to_string(link.pairs) +
                     " pairs of stages, each priced at the whole rate of the link; one wire for all would be busy for " +
                     format_percent(busy_s / p.predicted.iteration_s) + " of the iteration");
  return told;
}

/// What each pipeline of a plan does in an iteration, and what it waits for.
struct played_line {
  hetsched::simulation played;
  std::vector<hetsched::timed_action> critical;
};

/// The iteration of every pipeline under its schedule. Precondition: evaluated.
[[nodiscard]] inline std::vector<played_line> play(const hetsched::plan& p) {
  using namespace hetsched;
  std::vector<played_line> all;
  for (const auto& line : p.pipelines) {
    const auto order = order_of(line, {})->order;
    const auto work = make_workload(to_pipeline(line), order);
    all.push_back({simulate(work, order), critical_path(work, order)});
  }
  return all;
}

/// Of the smallest device of a plan, as far as that is known; 0: it is of none.
[[nodiscard]] inline int fewest_multiprocessors(const hetsched::cluster& hardware, const hetsched::plan& p) {
  int fewest = 0;
  for (const auto& line : p.pipelines)
    for (const auto& stage : line.stages)
      for (const auto& group : stage.devices)
        if (const int own = subcluster_of(hardware, group.mesh).device.multiprocessors; own > 0)
          fewest = fewest > 0 ? std::min(fewest, own) : own;
  return fewest;
}

/// How the tensors of a pipeline get from stage to stage where all devices are GPUs.
[[nodiscard]] inline hetsched::report_table transports_table(const hetsched::cluster& hardware,
                                                             const hetsched::pipeline_plan& line) {
  hetsched::report_table table{.heading = "Transports",
                               .note = "Between the GPUs of neighbouring stages.",
                               .columns = {"stages", "by", "why"},
                               .rows = {}};
  for (std::size_t i = 0; i + 1 < line.stages.size(); ++i) {
    const auto choice = choose_transport(hardware, line.stages[i].devices, line.stages[i + 1].devices);
    table.rows.push_back({std::to_string(i) + ", " + std::to_string(i + 1),
                          std::string(name_of(choice.how)) + (choice.nic.empty() ? "" : " over " + choice.nic), choice.reason});
  }
  return table;
}

/// The page of a plan: its figures, and every pipeline's stages and timeline on one scale. `origin`: what the plan was made from;
/// `held`: what fills the memory of every stage of every pipeline, empty where that is not known; `held_up_s`: an iteration whose
/// sends hold ranks up.
[[nodiscard]] inline std::string plan_page(const hetsched::cluster& hardware, const hetsched::plan& p, const std::string& origin,
                                           std::vector<played_line> played,
                                           const std::vector<std::vector<hetsched::memory_use>>& held = {},
                                           std::optional<double> held_up_s = {}) {
  using namespace hetsched;
  report page;
  page.title = "Training plan";
  const auto devices = device_use(hardware, used_devices(p));
  page.summary = origin + ": " + batch_text(p) + " per iteration, schedule " + schedules_text(p) +
                 (p.planner.empty() ? "" : ", planner " + p.planner) + ". Devices: " + devices.used +
                 (devices.idle.empty() ? "." : ", " + devices.idle + ".");
  page.figures = prediction_figures(p.predicted, p.setting.sequence);
  if (p.setting.sequence > 0 && p.predicted.samples_per_s > 0)
    page.figures.push_back({"tokens", format_number(p.predicted.samples_per_s * p.setting.sequence),
                            "per second, with " + std::to_string(p.setting.sequence) + " per sample"});
  if (played.size() == 1)
    for (auto& figure : simulation_figures(played.front().played)) page.figures.push_back(std::move(figure));
  if (p.objective != plan_objective::iteration) held_up_s.reset();
  if (p.evidence) page.figures.push_back({"search", search_state(*p.evidence, held_up_s), evidence_text(p, held_up_s)});
  std::optional<report_figure> bottleneck;
  double span_s = 0;
  for (const auto& s : played) span_s = std::max(span_s, s.played.makespan_s);
  const int multiprocessors = fewest_multiprocessors(hardware, p);
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    auto& one = played[l];
    auto section = plan_section(p.pipelines[l], subcluster_names(hardware), std::move(one.played.timeline), one.played.period_s);
    if (l < held.size()) section.held = held[l];
    if (!one.critical.empty()) {
      // Of several pipelines, the one that all wait for.
      if (one.played.makespan_s == span_s) bottleneck = bottleneck_figure(one.critical, section.picture.labels);
      section.tables.push_back(critical_path_table(one.critical, 10));
      section.picture.critical = std::move(one.critical);
    }
    if (played.size() > 1) {
      section.heading = "Pipeline " + std::to_string(l);
      section.picture.span_s = span_s;
    } else {
      section.picture.period_s = p.predicted.period_s;
    }
    if (p.pipelines[l].stages.size() > 1) {
      section.tables.push_back(transports_table(hardware, p.pipelines[l]));
      if (multiprocessors > 0)
        section.tables.back().note += " hetsched-train --nccl: " + nccl_channels_text(multiprocessors) + ".";
    }
    page.sections.push_back(std::move(section));
  }
  if (bottleneck) page.figures.push_back(std::move(*bottleneck));
  report_table sums{.heading = "Gradients added up between pipelines and stages",
                    .note = "Once per iteration, after the last backward of the stages that hold the layers.",
                    .columns = {"layers", ">pipelines", ">bytes", ">time"},
                    .rows = {}};
  for (const auto& g : p.gradient_sync)
    sums.rows.push_back(
        {layers_text(g.layers), std::to_string(g.pipelines.size()), format_bytes(g.bytes), format_seconds(g.seconds)});
  for (const auto& line : p.pipelines)
    for (const auto& c : line.copy_sync)
      sums.rows.push_back({copy_text(c), "1", format_bytes(c.bytes), format_seconds(c.seconds)});
  if (!sums.rows.empty()) page.sections.back().tables.push_back(std::move(sums));
  return to_html(page);
}

}  // namespace command
