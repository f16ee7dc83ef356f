// SPDX-License-Identifier: Apache-2.0
// hetsched-predict --plan: a plan evaluated anew, beside what its file says.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/evaluate/breakdown.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/io.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/views/plan.hpp>

#include "../command.hpp"
#include "../costs.hpp"
#include "../count_text.hpp"

namespace predict {

using namespace hetsched;

struct plan_arguments {
  std::string cluster, model, plan, out;
  std::string recompute;  ///< of all stages; empty: as the plan says
  std::string sends;      ///< empty: as the stack does
  int zero = -1;          ///< of all stages; -1: as the plan says
  command::cost_choice costs;
  bool json = false;
};

/// A plan, what it is worth, and where its time goes.
struct judged_plan {
  hetsched::plan planned;  ///< as the file says
  evaluation now;
  breakdown parts;
  send_mode sends = send_mode::asynchronous;
  std::optional<double> held_up_s = {};  ///< an iteration whose sends hold ranks up, unless they are asynchronous
};

using memory_parts = std::vector<std::pair<std::string, bytes_t>>;

/// What each device of a stage holds, by what holds it; a profile does not tell all parts apart.
inline memory_parts parts_of(const memory_use& m, bool measured) {
  if (measured) return {{"state", m.weights + m.gradients}, {"activations", m.activations}};
  return {{"weights", m.weights}, {"gradients", m.gradients}, {"optimizer", m.optimizer}, {"activations", m.activations},
          {"buffers", m.buffers}, {"temporary", m.temporary}, {"runtime", m.runtime},     {"margin", m.margin}};
}

inline bool fits(const stage_plan& s) { return s.memory_bytes <= s.memory_capacity_bytes; }

inline nlohmann::ordered_json to_json(const prediction& p) {
  nlohmann::ordered_json out{{"iteration_s", p.iteration_s},
                             {"lower_bound_s", p.lower_bound_s},
                             {"period_s", p.period_s},
                             {"samples_per_s", p.samples_per_s},
                             {"mfu", p.mfu},
                             {"load_balance", p.load_balance}};
  if (p.cost_per_sample) out["cost_per_sample"] = *p.cost_per_sample;
  return out;
}

inline nlohmann::ordered_json to_json(const breakdown& b, bool several) {
  nlohmann::ordered_json out;
  if (several) out["pipeline"] = b.pipeline;
  out["stage"] = b.stage;
  out["compute_s"] = b.compute_s;
  out["collective_s"] = b.collective_s;
  out["transfer_s"] = b.transfer_s;
  out["bubble_s"] = b.bubble_s;
  out["gradient_reduction_s"] = b.gradient_reduction_s;
  out["optimizer_s"] = b.optimizer_s;
  return out;
}

inline double transfer_s(const boundary_plan* b) { return b ? b->forward_s : 0; }

/// The stages of a pipeline as they are now and as they were planned.
inline auto stages_now_and_then(const judged_plan& judged, std::size_t l) {
  return views::zip(views::stages_with_boundaries(judged.now.plan.pipelines[l]),
                    views::stages_with_boundaries(judged.planned.pipelines[l]));
}

inline nlohmann::ordered_json stages_json(const judged_plan& judged, std::size_t l, bool measured,
                                          const std::vector<std::string>& subclusters) {
  auto stages = nlohmann::ordered_json::array();
  for (const auto& [now, then] : stages_now_and_then(judged, l)) {
    const auto &s = now.stage, &old = then.stage;
    const auto& group = s.devices.front();
    const auto& held = judged.now.pipelines[l].stages[now.number];
    nlohmann::ordered_json stage;
    stage["layers"] = {s.layers.first, s.layers.last - 1};
    stage["subcluster"] = subclusters[static_cast<std::size_t>(group.mesh.subcluster)];
    stage["first_device"] = group.first_device;
    stage["nodes"] = is_mixed(s.devices) ? group.mesh.nodes : s.where().mesh.nodes;
    stage["devices_per_node"] = group.mesh.devices_per_node;
    if (is_mixed(s.devices))  // then the above are those of the first ones
      for (const auto& g : s.devices)
        stage["devices"].push_back({{"subcluster", subclusters[static_cast<std::size_t>(g.mesh.subcluster)]},
                                    {"first_device", g.first_device},
                                    {"nodes", g.mesh.nodes},
                                    {"devices_per_node", g.mesh.devices_per_node}});
    stage["recompute"] = name_of(s.recompute);
    stage["zero"] = s.zero;
    stage["in_flight"] = held.in_flight;
    stage["forward_s"] = s.cost.forward_s;
    stage["backward_s"] = s.cost.backward_s;
    stage["transfer_s"] = transfer_s(now.boundary);
    stage["update_s"] = s.update_s;
    for (const auto& [name, bytes] : parts_of(held.memory, measured)) stage["memory_bytes"][name] = bytes;
    stage["memory_bytes"]["total"] = s.memory_bytes;
    stage["memory_capacity_bytes"] = s.memory_capacity_bytes;
    stage["fits"] = fits(s);
    stage["plan"] = {{"forward_s", old.cost.forward_s},
                     {"backward_s", old.cost.backward_s},
                     {"transfer_s", transfer_s(then.boundary)},
                     {"memory_bytes", old.memory_bytes}};
    stages.push_back(std::move(stage));
  }
  return stages;
}

inline nlohmann::ordered_json to_json(const judged_plan& judged, const std::string& costs, nlohmann::ordered_json like_cases,
                                      const std::vector<std::string>& subclusters) {
  const auto& p = judged.now.plan;
  const bool several = p.pipelines.size() > 1, measured = costs == "profile";
  auto out = to_json(p.predicted);
  out["fits"] = judged.now.shortage.empty();
  out["costs"] = costs;
  if (judged.held_up_s) {
    out["sends"] = at(send_modes, judged.sends);
    out["iteration_with_sends_s"] = *judged.held_up_s;
  }
  out["like_cases"] = std::move(like_cases);
  if (p.setting.stack) out["stack"] = p.setting.stack->name;
  const auto describe_line = [&](nlohmann::ordered_json& into, std::size_t l) {
    into["schedule"] = p.pipelines[l].schedule.name;
    into["microbatches"] = p.pipelines[l].microbatches;
    into["microbatch_size"] = p.pipelines[l].microbatch_size;
  };
  const auto add_copies = [&](nlohmann::ordered_json& into, std::size_t l) {
    for (const auto& c : p.pipelines[l].copy_sync)
      into["copy_sync"].push_back({{"owner", c.owner}, {"layer", c.layer}, {"bytes", c.bytes}, {"seconds", c.seconds}});
  };
  if (!several) describe_line(out, 0);
  out["breakdown"] = to_json(judged.parts, several);
  if (several) {
    for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
      nlohmann::ordered_json line;
      describe_line(line, l);
      line["stages"] = stages_json(judged, l, measured, subclusters);
      add_copies(line, l);
      out["pipelines"].push_back(std::move(line));
    }
    for (const auto& g : p.gradient_sync)
      out["gradient_sync"].push_back(
          {{"layers", {g.layers.first, g.layers.last - 1}}, {"bytes", g.bytes}, {"seconds", g.seconds}});
  } else {
    out["stages"] = stages_json(judged, 0, measured, subclusters);
    add_copies(out, 0);
  }
  out["plan"] = to_json(judged.planned.predicted);
  return out;
}

using table_rows = std::vector<std::vector<std::string>>;

/// A figure of the plan's file; "-" where the file has none.
inline std::string planned_text(double value, std::string text) { return value > 0 ? text : "-"; }

inline std::string stage_table(const judged_plan& judged, std::size_t l, const std::vector<std::string>& subclusters) {
  table_rows rows;
  const auto seconds = [](double s) { return planned_text(s, format_seconds(s)); };
  for (const auto& [now, then] : stages_now_and_then(judged, l)) {
    const auto &s = now.stage, &old = then.stage;
    rows.push_back({std::to_string(now.number), layers_text(s.layers), devices_text(s, subclusters), degrees_text(s),
                    format_seconds(s.cost.forward_s), seconds(old.cost.forward_s), format_seconds(s.cost.backward_s),
                    seconds(old.cost.backward_s), now.boundary ? transfer_text(*now.boundary) : "-",
                    now.boundary ? seconds(transfer_s(then.boundary)) : "-", format_seconds(s.update_s)});
  }
  return format_table({">stage", ">layers", "devices", "degrees", ">forward", ">(plan)", ">backward", ">(plan)", ">transfer",
                       ">(plan)", ">update"},
                      rows);
}

inline std::string memory_table(const judged_plan& judged, std::size_t l, bool measured) {
  const auto& stages = judged.now.pipelines[l].stages;
  std::vector<std::string> heading{">stage", ">in flight"};
  for (const auto& [name, ignored] : parts_of({}, measured)) heading.push_back(">" + name);
  heading.insert(heading.end(), {">memory / device", ">(plan)"});
  table_rows rows;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = judged.now.plan.pipelines[l].stages[i];
    const auto old = judged.planned.pipelines[l].stages[i].memory_bytes;
    rows.push_back({std::to_string(i), detail::print("%.4g", stages[i].in_flight)});
    for (const auto& [ignored, bytes] : parts_of(stages[i].memory, measured)) rows.back().push_back(format_bytes(bytes));
    rows.back().push_back(format_bytes(s.memory_bytes) + " / " + format_bytes(s.memory_capacity_bytes));
    rows.back().push_back(planned_text(static_cast<double>(old), format_bytes(old)));
  }
  return format_table(heading, rows);
}

inline std::string figures_table(const prediction& now, const prediction& then, int sequence) {
  const auto seconds = [](double s) { return planned_text(s, format_seconds(s)); };
  const auto percent = [](double x) { return planned_text(x, format_percent(x)); };
  table_rows rows{
      {{"iteration", format_seconds(now.iteration_s), seconds(then.iteration_s), "simulated"},
       {"lower bound", format_seconds(now.lower_bound_s), seconds(then.lower_bound_s), "of the schedule"},
       {"period", format_seconds(now.period_s), seconds(then.period_s), "per microbatch, pipeline full"},
       {"throughput", format_number(now.samples_per_s), planned_text(then.samples_per_s, format_number(then.samples_per_s)),
        "samples per second"},
       {"MFU", planned_text(now.mfu, format_percent(now.mfu)), percent(then.mfu), "of the peak of the devices in use"},
       {"load balance", format_percent(now.load_balance), percent(then.load_balance), "over the devices in use"}}};
  const auto money = [](const prediction& p, double samples) {
    return p.cost_per_sample ? format_money(*p.cost_per_sample * samples) : std::string("-");
  };
  if (now.cost_per_sample) {
    const double samples = now.samples_per_s * now.iteration_s;
    rows.push_back({"cost", money(now, samples), money(then, samples), "per iteration, for what is in use"});
    if (sequence > 0) rows.push_back({"", money(now, 1e6 / sequence), money(then, 1e6 / sequence), "per million tokens"});
  }
  return format_table({"", ">predicted", ">(plan)", ""}, rows);
}

inline std::string breakdown_table(const judged_plan& judged) {
  const auto& b = judged.parts;
  const double whole_s = judged.now.plan.predicted.iteration_s;
  table_rows rows;
  const auto row = [&](const char* name, double seconds) {
    rows.push_back({name, format_seconds(seconds), format_percent(whole_s > 0 ? seconds / whole_s : 0)});
  };
  row("computing", b.compute_s);
  row("collectives", b.collective_s);
  row("waiting for transfers", b.transfer_s);
  row("bubble", b.bubble_s);
  row("gradient reduction", b.gradient_reduction_s);
  row("optimizer step", b.optimizer_s);
  const auto who = stage_name(judged.now.plan, static_cast<std::size_t>(b.pipeline), static_cast<std::size_t>(b.stage));
  return format_table({"busiest: " + who, ">time", ">share"}, rows);
}

inline std::string pages(const judged_plan& judged, const std::string& costs_text, const std::string& like_cases, bool measured,
                         const std::vector<std::string>& names) {
  const auto& p = judged.now.plan;
  std::string text;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    if (p.pipelines.size() > 1) text += "pipeline " + std::to_string(l) + ":\n";
    text += stage_table(judged, l, names) + '\n' + memory_table(judged, l, measured) + '\n' + "schedule " + line.schedule.name +
            ", " + command::count_text(line.microbatches, "microbatch") + " of " + std::to_string(line.microbatch_size) + "; " +
            costs_text + (p.pipelines.size() > 1 ? "\n\n" : "\n");
  }
  text += like_cases + "\n\n";
  table_rows rows;
  for (const auto& g : p.gradient_sync) rows.push_back({layers_text(g.layers), format_bytes(g.bytes), format_seconds(g.seconds)});
  for (const auto& line : p.pipelines)
    for (const auto& c : line.copy_sync) rows.push_back({copy_text(c), format_bytes(c.bytes), format_seconds(c.seconds)});
  if (!rows.empty()) {
    text += format_table({"gradients of layers", ">bytes", ">time"}, rows) + '\n';
  }
  return text + figures_table(p.predicted, judged.planned.predicted, p.setting.sequence) + '\n' + breakdown_table(judged);
}

/// Says where the plan was made for another head than the model's.
inline void warn_of_other_head(const plan_arguments& given, const plan_setting& setting, const command::cost_source& source) {
  // A setting that tells no sequence tells nothing of the model.
  if (const auto& read = source.model(); read && read->family && setting.sequence > 0) {
    const int planned = setting.further_tokens, read_tokens = read->family->further_tokens;
    if (planned != read_tokens)
      std::cerr << "hetsched-predict: " << given.plan << " was made for a head that predicts " << planned
                << " further tokens (setting.further_tokens), and that of " << given.model << " predicts " << read_tokens << '\n';
  }
}

/// Throws: file_error for a stage that the source has no costs for.
inline void check_stage(const plan_arguments& given, const stage_plan& s, const std::string& place,
                        const command::cost_source& source) {
  if (source.measured() && !source.of_shapes()) {
    const auto otherwise = "; the replicas of " + given.costs.profile + " were measured without ";
    if (s.zero != 0)
      throw file_error(given.plan, place + "/zero", "found " + std::to_string(s.zero) + ", expected 0" + otherwise + "ZeRO");
    if (s.recompute != recomputation::none)
      throw file_error(given.plan, place + "/recompute",
                       "found " + std::string(name_of(s.recompute)) + ", expected none" + otherwise + "recomputation");
  }
  const auto& shares = s.shares.data;
  const bool uneven = std::any_of(shares.begin(), shares.end(), [&](double x) { return x != shares.front(); });
  if (source.of_shapes() && (uneven || is_mixed(s.devices)))
    throw file_error(given.plan, place,
                     "its devices get different numbers of samples, and " + given.costs.profile +
                         ", of version 1, holds the costs of one number; a profile of version 2 or a model has others");
}

/// Throws: file_error for a plan of other layers than the source's, and as check_stage.
inline void check_plan(const plan_arguments& given, const std::vector<pipeline_plan>& lines, const command::cost_source& source) {
  const auto last = lines.front().stages.size() - 1;
  if (const int end = lines.front().stages[last].layers.last; end != source.layer_count())
    throw file_error(given.plan, "/pipelines/0/stages/" + std::to_string(last) + "/layers/1",
                     "found " + std::to_string(end - 1) + ", expected " + std::to_string(source.layer_count() - 1) +
                         ", the last layer of " + source.layer_file() + (source.measured() ? "" : " (see --granularity)"));
  for (std::size_t l = 0; l < lines.size(); ++l)
    for (std::size_t i = 0; i < lines[l].stages.size(); ++i) {
      const auto& s = lines[l].stages[i];
      const auto line = "/pipelines/" + std::to_string(l);
      if (const int size = lines[l].microbatch_size; s.shares.data.empty() && s.degrees.data > 0 && size % s.degrees.data != 0)
        throw file_error(given.plan, line + "/microbatch_size",
                         "found " + std::to_string(size) + ", expected a multiple of the data degree of stage " +
                             std::to_string(i) + ", " + std::to_string(s.degrees.data));
      check_stage(given, s, line + "/stages/" + std::to_string(i), source);
    }
}

/// What the plan is worth on some hardware, or why it cannot run.
inline outcome<evaluation> evaluate_on(const cluster& on, const hetsched::plan& planned, const command::cost_source& source,
                                       const plan_arguments& given, const cluster& hardware) {
  try {
    return evaluate(on, source.priced(), planned);
  } catch (const input_error& wrong) {
    // A profile that does not suit the cluster says so itself.
    if (source.measured()) (void)source.costs(on, planned.pipelines.front().microbatch_size);
    const bool replicas = source.measured() && !source.of_shapes();
    throw file_error(given.plan, {}, wrong.what() + (replicas ? " (" + source.measured_text(hardware) + ")" : ""));
  }
}

inline int plan_command(plan_arguments given) {
  command::outputs files;
  for (const auto& path :
       {given.cluster, given.model, given.plan, given.costs.profile, given.costs.stack, command::forest_of(given.costs.formulas)})
    files.reads(path);
  files.expect(given.out);
  const auto file = read_cluster_file(given.cluster);
  for (const auto& path : file.files) files.reads(path);
  judged_plan judged{.planned = plan_on(read_plan(given.plan), file.hardware, given.plan, given.cluster), .now = {}, .parts = {}};
  for (auto& s : views::stages(judged.planned)) {
    if (!given.recompute.empty()) s.recompute = *find_recomputation(given.recompute);
    if (given.zero >= 0) s.zero = given.zero;
  }
  given.costs.take(judged.planned.setting, given.plan);
  const auto& own = judged.planned.setting.stack;
  given.costs.batch = static_cast<int>(std::min<std::int64_t>(sample_count(judged.planned), INT_MAX));
  const command::cost_source source(given.costs, given.model, own ? own : file.stack);
  const auto hardware = source.anchored(file);
  source.check_calibrations(hardware);
  for (const auto& text : source.anchor_warnings(file, hardware)) std::cerr << "hetsched-predict: " << text << '\n';
  for (const auto& text : source.warnings(hardware)) std::cerr << "hetsched-predict: " << text << '\n';
  warn_of_other_head(given, judged.planned.setting, source);
  check_plan(given, judged.planned.pipelines, source);
  const auto judge = [&](const cluster& on) { return evaluate_on(on, judged.planned, source, given, hardware); };
  auto found = judge(hardware);
  if (!found) {
    std::cerr << "hetsched-predict: the plan cannot run: " << found.why_not().reason << '\n';
    return command::infeasible;
  }
  judged.now = *std::move(found);
  judged.now.plan.setting = setting_of(hardware, source.priced());
  judged.sends = source.sends(given.sends, judged.now.plan);
  if (judged.sends != send_mode::asynchronous) judged.held_up_s = iteration_under(judged.now, judged.sends);
  if (const auto alone = judge(with_free_links(hardware))) judged.parts = break_down(hardware, judged.now, *alone);
  files.add(given.out, to_json(judged.now.plan, hardware));
  files.write();
  const auto names = subcluster_names(hardware);
  if (given.json)
    std::cout << to_json(judged, judged.now.plan.setting.costs, source.like_cases_json(hardware), names).dump() << '\n';
  else
    std::cout << pages(judged, source.text(hardware), cases_text(source.like_cases(hardware)), source.measured(), names)
              << source.held_up_text(judged.sends, judged.held_up_s) << files.summary();
  for (const auto& remark : source.remarks(hardware, judged.now.plan)) std::cerr << "hetsched-predict: " << remark << '\n';
  if (judged.now.shortage.empty()) return command::done;
  const auto ways = source.ways_out();
  std::cerr << "hetsched-predict: the plan does not fit: " << judged.now.shortage << (ways.empty() ? "" : " (" + ways + ")")
            << '\n';
  return command::infeasible;
}

}  // namespace predict
