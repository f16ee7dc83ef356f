// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/json/detail/inference_json.hpp>
#include <hetsched/io/json/device_json.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json/stack_json.hpp>
#include <hetsched/io/schedule_csv.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

namespace hetsched::detail {

/// What the parts of a plan.json have in common while it is read.
struct plan_reader {
  std::vector<std::string>& subclusters;
  std::string folder;     // of the file, for those beside it
  bool complete = false;  // all subclusters are known
  bool serves = false;    // a plan for inference

  [[nodiscard]] int subcluster(const json_value& value) const {
    const auto name = value.name();
    const auto position = std::find(subclusters.begin(), subclusters.end(), name);
    const auto index = static_cast<int>(position - subclusters.begin());
    if (position != subclusters.end()) return index;
    if (complete) value.expected("a name of /subclusters");
    subclusters.push_back(name);
    return index;
  }

  [[nodiscard]] device_group group(const json_value& value) const {
    device_group g;
    g.mesh.subcluster = subcluster(value.at("subcluster"));
    g.first_device = value.at("first_device").count(0);
    if (const auto nodes = value.find("nodes")) g.mesh.nodes = nodes->count();
    g.mesh.devices_per_node = value.at("devices_per_node").count();
    if (std::int64_t{g.mesh.nodes} * g.mesh.devices_per_node > 1'000'000) value.fail("more than 1000000 devices in one stage");
    return g;
  }

  static void layers(const json_value& value, int next, stage_plan& stage) {
    if (value.size() != 2) value.expected("[first, last], both included");
    stage.layers.first = value[0].count(0);
    stage.layers.last = value[1].count(stage.layers.first) + 1;
    if (stage.layers.first != next)
      value.fail("starts at layer " + std::to_string(stage.layers.first) + ", expected " + std::to_string(next));
  }

  static void degrees(const json_value& value, stage_plan& stage) {
    value.object({"data", "context", "tensor", "expert"});
    const auto size = [&](const char* axis) { return value.has(axis) ? value.at(axis).count() : 1; };
    stage.degrees = {.data = size("data"), .context = size("context"), .tensor = size("tensor"), .expert = size("expert")};
    const auto& d = stage.degrees;
    const int devices = device_count(stage.devices);
    if (static_cast<double>(d.data) * d.context * d.tensor != static_cast<double>(devices))
      value.fail("data x context x tensor must be the " + std::to_string(devices) + " devices of the stage");
    if (d.data % d.expert != 0) value.at("expert").expected("a divisor of the data degree");
  }

  static void shares(const json_value& value, stage_plan& stage) {
    value.object({"data", "context", "tensor", "state"});
    const auto axis = [&](const char* name, int size) {
      std::vector<double> parts;
      const auto found = value.find(name);
      if (!found) return parts;
      parts = found->sized(as_size(size), "device of the axis").list([](const json_value& x) { return x.number(0, 1); });
      double sum = 0;
      for (const double part : parts) sum += part;
      if (!(std::abs(sum - 1) <= 1e-6)) found->fail("the shares of an axis must add up to 1");
      return parts;
    };
    const auto& d = stage.degrees;
    stage.shares = {axis("data", d.data), axis("context", d.context), axis("tensor", d.tensor), axis("state", d.data)};
  }

  // The numbers of a stage that both versions have; they may be missing in version 2.
  static void numbers(const json_value& value, stage_plan& s) {
    const auto seconds = [&](const char* key, double& x) {
      if (const auto found = value.find(key)) x = found->number(0, max_seconds);
    };
    const auto bytes = [&](const char* key, bytes_t& x) {
      if (const auto found = value.find(key)) x = found->bytes();
    };
    if (const auto warmup = value.find("warmup")) s.warmup = warmup->count(1, max_microbatches);
    seconds("forward_s", s.cost.forward_s);
    seconds("backward_s", s.cost.backward_s);
    seconds("weight_backward_s", s.cost.weight_backward_s);
    seconds("update_s", s.update_s);
    bytes("weight_bytes", s.cost.weight_bytes);
    bytes("gradient_bytes", s.cost.gradient_bytes);
    bytes("optimizer_bytes", s.cost.optimizer_bytes);
    bytes("activation_bytes", s.cost.activation_bytes);
    bytes("temporary_bytes", s.cost.temporary_bytes);
    bytes("memory_bytes", s.memory_bytes);
    bytes("memory_capacity_bytes", s.memory_capacity_bytes);
    if (s.cost.weight_backward_s > s.cost.backward_s) value.at("weight_backward_s").expected("at most the stage's backward_s");
    if (s.cost.gradient_bytes + s.cost.optimizer_bytes > s.cost.weight_bytes)
      value.at("weight_bytes").expected("at least gradient_bytes and optimizer_bytes, which are part of it");
  }

  [[nodiscard]] stage_plan stage(const json_value& value, int next) const {
    value.object({"layers", "devices", "degrees", "shares", "recompute", "zero", "warmup", "forward_s", "backward_s",
                  "weight_backward_s", "update_s", "weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes",
                  "temporary_bytes", "overheads", "memory_bytes", "memory_capacity_bytes"});
    if (serves)
      for (const char* of_training : {"warmup", "backward_s", "weight_backward_s", "update_s"}) refuse(value, of_training);
    stage_plan s;
    layers(value.at("layers"), next, s);
    const auto devices = value.at("devices");
    if (devices.size() == 0) devices.expected("at least one group of devices");
    for (std::size_t i = 0; i < devices.size(); ++i) {
      devices[i].object({"subcluster", "first_device", "nodes", "devices_per_node"});
      s.devices.push_back(group(devices[i]));
    }
    try {
      if (!is_mixed(s.devices)) (void)shape_of(s.devices);
    } catch (const input_error& wrong) {
      devices.fail(wrong.what());
    }
    degrees(value.at("degrees"), s);
    if (const auto uneven = value.find("shares")) shares(*uneven, s);
    if (const auto recompute = value.find("recompute")) {
      const auto found = find_recomputation(recompute->text());
      if (!found) recompute->expected("none, selective or full");
      s.recompute = *found;
    }
    if (const auto zero = value.find("zero")) s.zero = zero->count(0, 3);
    if (const auto more = value.find("overheads")) {
      more->object({"runtime_bytes", "buffer_bytes", "fragmentation", "margin"});
      s.overheads = {.runtime_bytes = more->at("runtime_bytes").bytes(),
                     .buffer_bytes = more->at("buffer_bytes").bytes(),
                     .fragmentation = more->at("fragmentation").number(0, 1000),
                     .margin = more->at("margin").number(0, 1000)};
    }
    numbers(value, s);
    return s;
  }

  // What a plan for inference does not have.
  static void refuse(const json_value& value, const char* of_training) {
    if (const auto found = value.find(of_training)) found->fail("is of training, and the objective of inference");
  }

  static void count_stages(const json_value& stages) {
    if (stages.size() == 0) stages.expected("at least one stage");
    if (stages.size() > as_size(max_stages)) stages.expected("at most " + std::to_string(max_stages) + " stages");
  }

  static void counts(const json_value& value, pipeline_plan& line) {
    line.microbatches = value.at("microbatches").count(1, max_microbatches);
    if (const auto size = value.find("microbatch_size")) line.microbatch_size = size->count();
  }

  [[nodiscard]] static boundary_plan boundary(const json_value& value) {
    value.object({"bytes", "forward_s", "backward_s", "forward_occupied_s", "backward_occupied_s", "reshard", "extra_bytes"});
    boundary_plan b;
    if (const auto bytes = value.find("bytes")) b.bytes = bytes->bytes();
    b.forward_s = value.at("forward_s").number(0, max_seconds);
    b.backward_s = value.at("backward_s").number(0, max_seconds);
    if (const auto part = value.find("forward_occupied_s")) b.forward_occupied_s = part->number(0, b.forward_s);
    if (const auto part = value.find("backward_occupied_s")) b.backward_occupied_s = part->number(0, b.backward_s);
    if (const auto reshard = value.find("reshard")) b.reshard = reshard->name();
    if (const auto extra = value.find("extra_bytes")) b.extra_bytes = extra->bytes();
    return b;
  }

  [[nodiscard]] static copy_sync_plan copy_sync(const json_value& value, int last_layer) {
    value.object({"owner", "layer", "bytes", "seconds"});
    copy_sync_plan c{.owner = value.at("owner").count(0, last_layer), .layer = value.at("layer").count(0, last_layer)};
    if (const auto bytes = value.find("bytes")) c.bytes = bytes->bytes();
    c.seconds = value.at("seconds").number(0, max_seconds);
    return c;
  }

  // The text of the actions, or the name of a file beside the plan that has it.
  [[nodiscard]] schedule actions(const json_value& value, const pipeline_plan& line) const {
    auto text = value.text();
    if (text.find('\n') == std::string::npos) {
      const auto name = value.name();
      if (std::filesystem::path(name).filename() != name || name == "." || name == "..")
        value.expected("the actions' text, or the name of a file in the folder of the plan");
      text = read_text(folder + name);
    }
    try {
      auto order = parse_schedule_csv(text);
      if (order.ranks != static_cast<int>(line.stages.size()) || order.microbatches != line.microbatches)
        value.fail("found " + std::to_string(order.ranks) + " ranks and " + std::to_string(order.microbatches) +
                   " microbatches, expected " + std::to_string(line.stages.size()) + " and " + std::to_string(line.microbatches));
      return order;
    } catch (const file_error&) {
      throw;
    } catch (const input_error& wrong) {
      value.fail(wrong.what());
    }
  }

  [[nodiscard]] pipeline_plan pipeline(const json_value& value) const {
    value.object({"microbatches", "microbatch_size", "stages", "boundaries", "copy_sync", "schedule"});
    pipeline_plan line;
    counts(value, line);
    const auto stages = value.at("stages");
    count_stages(stages);
    for (std::size_t i = 0; i < stages.size(); ++i)
      line.stages.push_back(stage(stages[i], i == 0 ? 0 : line.stages.back().layers.last));
    if (const auto boundaries = value.find("boundaries"))
      line.boundaries = boundaries->sized(line.stages.size() - 1, "boundary between stages").list(boundary);
    if (serves) refuse(value, "copy_sync");
    if (const auto syncs = value.find("copy_sync"))
      line.copy_sync = syncs->list([&](const json_value& x) { return copy_sync(x, line.stages.back().layers.last - 1); });
    const auto schedule = value.at("schedule");
    schedule.object({"name", "actions"});
    line.schedule.name = schedule.at("name").name();
    if (serves && line.schedule.name != forward_schedule_name) schedule.at("name").expected("forward, as of inference");
    if (serves) refuse(schedule, "actions");
    if (const auto listed = schedule.find("actions")) line.schedule.actions = actions(*listed, line);
    return line;
  }

  // Version 1 names one group of devices by keys of the stage, and the boundary behind it by its transfer_s.
  [[nodiscard]] pipeline_plan pipeline_1(const json_value& value) const {
    value.object({"microbatches", "microbatch_size", "stages"});
    pipeline_plan line;
    counts(value, line);
    const auto stages = value.at("stages");
    count_stages(stages);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto at = stages[i];
      at.object({"layers", "subcluster", "first_device", "nodes", "devices_per_node", "degrees", "warmup", "forward_s",
                 "backward_s", "transfer_s", "memory_bytes", "memory_capacity_bytes", "weight_backward_s", "weight_bytes",
                 "activation_bytes"});
      stage_plan s;
      layers(at.at("layers"), i == 0 ? 0 : line.stages.back().layers.last, s);
      (void)at.at("nodes");
      s.devices = {group(at)};
      degrees(at.at("degrees"), s);
      for (const char* required : {"warmup", "forward_s", "backward_s", "memory_bytes", "memory_capacity_bytes"})
        (void)at.at(required);
      numbers(at, s);
      const auto transfer = at.at("transfer_s");
      const double seconds = transfer.number(0, max_seconds);
      if (i + 1 == stages.size() && seconds != 0) transfer.expected("0, the last stage sends nothing on");
      if (i + 1 < stages.size()) line.boundaries.push_back({.forward_s = seconds, .backward_s = seconds});
      line.stages.push_back(std::move(s));
    }
    return line;
  }

  [[nodiscard]] static prediction predicted(const json_value& value) {
    value.object({"iteration_s", "lower_bound_s", "samples_per_s", "mfu", "load_balance", "period_s", "cost_per_sample"});
    const auto number = [&](const char* key) { return value.at(key).number(0, max_json_number); };
    return {.iteration_s = number("iteration_s"),
            .lower_bound_s = number("lower_bound_s"),
            .samples_per_s = number("samples_per_s"),
            .mfu = number("mfu"),
            .load_balance = number("load_balance"),
            .period_s = number("period_s"),
            .cost_per_sample = value.has("cost_per_sample") ? std::optional(number("cost_per_sample")) : std::nullopt};
  }

  [[nodiscard]] static search_evidence evidence(const json_value& value) {
    value.object(
        {"objective_value", "objective_bound", "iteration_bound", "sum_bound", "rule", "space", "complete", "stopped", "work"});
    search_evidence e{.objective_value = value.at("objective_value").number(0, max_json_number),
                      .objective_bound = value.at("objective_bound").number(0, max_json_number),
                      .complete = value.at("complete").boolean(),
                      .work = {}};
    // Of plans whose objective is the iteration, the same as objective_bound.
    if (const auto bound = value.find("iteration_bound")) (void)bound->number(0, max_json_number);
    if (const auto bound = value.find("sum_bound")) e.sum_bound = bound->number(0, max_json_number);
    if (const auto stopped = value.find("stopped")) e.stopped = stopped->boolean();
    if (const auto rule = value.find("rule")) e.rule = rule->text();
    if (const auto space = value.find("space")) e.space = space->text();
    if (const auto work = value.find("work"))
      work->members([&](const std::string& name, const json_value& count) {
        e.work.emplace_back(name, count.integer(0, std::int64_t{1} << 62));
      });
    return e;
  }

  [[nodiscard]] static gradient_sync_plan sync(const json_value& value, const plan& p) {
    value.object({"layers", "pipelines", "bytes", "seconds"});
    gradient_sync_plan g;
    const auto range = value.at("layers");
    if (range.size() != 2) range.expected("[first, last], both included");
    g.layers.first = range[0].count(0);
    g.layers.last = range[1].count(g.layers.first) + 1;
    const int pipelines = static_cast<int>(p.pipelines.size());
    g.pipelines = value.at("pipelines").list([&](const json_value& x) { return x.count(0, pipelines - 1); });
    if (const auto bytes = value.find("bytes")) g.bytes = bytes->bytes();
    g.seconds = value.at("seconds").number(0, max_seconds);
    return g;
  }

  [[nodiscard]] static plan_setting setting(const json_value& value) {
    value.object({"costs", "granularity", "sequence", "further_tokens", "precision", "attention", "whole_layers", "stack",
                  "anchored", "target"});
    const auto name = [&](const char* key) {
      const auto found = value.find(key);
      return found ? found->name() : std::string();
    };
    const auto sequence = value.find("sequence"), further = value.find("further_tokens"), whole = value.find("whole_layers"),
               stack = value.find("stack");
    std::vector<plan_setting::anchored_subcluster> anchored;
    if (const auto speeds = value.find("anchored"))
      speeds->members([&](const std::string& of, const json_value& speed) {
        const auto [whole_speed, of_class] = read_speeds(speed);
        anchored.push_back({of, whole_speed, of_class});
      });
    return {.costs = name("costs"),
            .granularity = name("granularity"),
            .sequence = sequence ? sequence->count(0, 1 << 30) : 0,
            .precision = name("precision"),
            .attention = name("attention"),
            .whole_layers = whole ? whole->list([](const json_value& x) { return x.name(); }) : std::vector<std::string>{},
            .stack = stack ? std::optional(read_stack(*stack)) : std::nullopt,
            .anchored = std::move(anchored),
            .target = name("target"),
            .further_tokens = further ? further->count(0, 64) : 0};
  }

  [[nodiscard]] static json_value pipelines_of(const json_value& top) {
    const auto pipelines = top.at("pipelines");
    if (pipelines.size() == 0) pipelines.expected("at least one pipeline");
    return pipelines;
  }

  [[nodiscard]] plan plan_1(const json_value& top) const {
    plan p{.planner = top.at("planner").name()};
    const auto microbatches = top.at("microbatches");
    (void)microbatches.count(1, max_microbatches);
    const auto schedule = top.at("schedule").name();
    const auto pipelines = pipelines_of(top);
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      p.pipelines.push_back(pipeline_1(pipelines[i]));
      p.pipelines.back().schedule.name = schedule;
    }
    if (const int sum = microbatch_count(p); sum != microbatches.count(1, max_microbatches))
      microbatches.expected(std::to_string(sum) + ", the sum over the pipelines");
    p.predicted = predicted(top.at("predicted"));
    return p;
  }

  // Their device counts, if these are told.
  [[nodiscard]] std::vector<int> known_subclusters(const json_value& names) const {
    std::vector<int> counts;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto entry = names[i].object({"name", "devices"});
      if (subcluster(entry.at("name")) != static_cast<int>(i)) entry.at("name").fail("the name is used twice");
      if (const auto devices = entry.find("devices")) counts.push_back(devices->count());
      if (!counts.empty() && counts.size() != i + 1) entry.fail("devices must be given for all subclusters, or for none");
    }
    return counts;
  }

  [[nodiscard]] std::vector<pipeline_plan> pipelines(const json_value& values) const {
    if (serves && values.size() != 1)
      values.fail("found " + std::to_string(values.size()) + " pipelines, expected one, as of inference");
    std::vector<pipeline_plan> found;
    std::int64_t microbatches = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      found.push_back(pipeline(values[i]));
      microbatches += found.back().microbatches;
      if (microbatches > max_microbatches)
        values[i].at("microbatches").fail("more than " + std::to_string(max_microbatches) + " microbatches in all pipelines");
      const int last = found[i].stages.back().layers.last, expected = found[0].stages.back().layers.last;
      if (last != expected)
        values[i].at("stages").fail("ends at layer " + std::to_string(last - 1) + ", expected " + std::to_string(expected - 1) +
                                    " as pipeline 0 has it");
    }
    return found;
  }
};

/// A plan of one pipeline that was read as one for inference.
[[nodiscard]] inline inference_plan served_by(plan p) {
  auto& line = p.pipelines.front();
  return {.planner = std::move(p.planner),
          .objective = p.objective,
          .in_flight = line.microbatches,
          .batch_size = line.microbatch_size,
          .stages = std::move(line.stages),
          .boundaries = std::move(line.boundaries),
          .setting = std::move(p.setting),
          .evidence = std::move(p.evidence)};
}

/// Refuses devices that belong to two stages. O(groups log groups).
inline void check_apart(const json_value& pipelines, const plan_file& file) {
  struct span {
    int subcluster, first, last;
    std::size_t pipeline, stage;
  };
  std::vector<span> spans;
  const auto& lines = file.plan.pipelines;
  for (std::size_t l = 0; l < lines.size(); ++l)
    for (std::size_t i = 0; i < lines[l].stages.size(); ++i)
      for (const auto& g : lines[l].stages[i].devices)
        spans.push_back({g.mesh.subcluster, g.first_device, g.first_device + g.mesh.device_count(), l, i});
  std::sort(spans.begin(), spans.end(), [](const span& a, const span& b) {
    return a.subcluster != b.subcluster ? a.subcluster < b.subcluster : a.first < b.first;
  });
  const auto name = [&](const span& s) {
    return (lines.size() > 1 ? "pipeline " + std::to_string(s.pipeline) + ", " : "") + "stage " + std::to_string(s.stage);
  };
  for (std::size_t k = 1; k < spans.size(); ++k) {
    const auto &a = spans[k - 1], &b = spans[k];
    if (a.subcluster != b.subcluster || b.first >= a.last) continue;
    const auto& later = a.pipeline != b.pipeline ? (a.pipeline > b.pipeline ? a : b) : a.stage > b.stage ? a : b;
    pipelines[later.pipeline].at("stages")[later.stage].at("devices").fail(
        "device " + std::to_string(b.first) + " of " + at(file.subclusters, b.subcluster) + " belongs to " +
        name(&later == &a ? b : a) + " already, and cannot to " + name(later));
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE any_plan_file parse_any_plan(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  plan_file result;
  plan& p = result.plan;
  auto folder = std::filesystem::path(file_name).parent_path().string();
  if (!folder.empty()) folder += '/';
  detail::plan_reader read{result.subclusters, folder};
  if (document.version_of("plan", 2) == 1) {
    p = read.plan_1(document.with_keys({"planner", "microbatches", "pipelines", "schedule", "predicted"}));
    return result;
  }
  const auto top = document.with_keys(
      {"planner", "objective", "subclusters", "setting", "pipelines", "gradient_sync", "predicted", "evidence"});
  if (const auto planner = top.find("planner")) p.planner = planner->name();
  if (const auto objective = top.find("objective")) {
    const auto known = objective_named(objective->name());
    if (!known) objective->expected("one of iteration, cost, latency, throughput");
    p.objective = *known;
    read.serves = is_inference(*known);
  }
  if (const auto names = top.find("subclusters")) result.device_counts = read.known_subclusters(*names);
  read.complete = !result.device_counts.empty();
  if (const auto setting = top.find("setting")) p.setting = read.setting(*setting);
  const auto pipelines = read.pipelines_of(top);
  p.pipelines = read.pipelines(pipelines);
  detail::check_apart(pipelines, result);
  if (read.serves) read.refuse(top, "gradient_sync");
  if (const auto syncs = top.find("gradient_sync"))
    p.gradient_sync = syncs->list([&](const detail::json_value& value) { return read.sync(value, p); });
  if (const auto evidence = top.find("evidence")) p.evidence = read.evidence(*evidence);
  const auto predicted = top.find("predicted");
  if (!read.serves) {
    if (predicted) p.predicted = read.predicted(*predicted);
    return result;
  }
  auto served = detail::served_by(std::move(p));
  if (predicted) served.predicted = detail::read_inference(*predicted, max_json_number);
  return inference_plan_file{std::move(served), std::move(result.subclusters), std::move(result.device_counts)};
}

HETSCHED_INLINE plan_file parse_plan(std::string_view text, std::string_view file_name) {
  auto file = parse_any_plan(text, file_name);
  if (const auto* served = std::get_if<inference_plan_file>(&file)) try {
      detail::expect_training(served->plan.objective);
    } catch (const input_error& wrong) {
      throw file_error(std::string(file_name), "", wrong.what());
    }
  return std::get<plan_file>(std::move(file));
}

HETSCHED_INLINE plan_file read_pipelines(const std::string& path) {
  auto file = read_any_plan(path);
  if (auto* trained = std::get_if<plan_file>(&file)) return std::move(*trained);
  auto& served = std::get<inference_plan_file>(file);
  plan_file result{.plan = {}, .subclusters = std::move(served.subclusters), .device_counts = std::move(served.device_counts)};
  result.plan.planner = served.plan.planner;
  result.plan.objective = served.plan.objective;
  result.plan.pipelines.push_back(forward_pipeline(served.plan));
  result.plan.setting = std::move(served.plan.setting);
  return result;
}

HETSCHED_INLINE plan plan_on(plan_file file, const cluster& hardware, const std::string& path, const std::string& cluster_name) {
  std::vector<std::vector<std::string>> owners;  // by subcluster and device: the stage that has it
  for (const auto& s : hardware.subclusters) owners.emplace_back(as_size(s.device_count()));
  const bool several = file.plan.pipelines.size() > 1;
  for (std::size_t l = 0; l < file.plan.pipelines.size(); ++l)
    for (std::size_t i = 0; i < file.plan.pipelines[l].stages.size(); ++i)
      for (std::size_t g = 0; g < file.plan.pipelines[l].stages[i].devices.size(); ++g) {
        auto& group = file.plan.pipelines[l].stages[i].devices[g];
        auto& mesh = group.mesh;
        const auto fail = [&](const std::string& key, const std::string& complaint) {
          throw file_error(
              path, "/pipelines/" + std::to_string(l) + "/stages/" + std::to_string(i) + "/devices/" + std::to_string(g) + key,
              complaint);
        };
        const auto& name = file.subclusters.at(as_size(mesh.subcluster));
        const auto position = hardware.find(name);
        if (!position) {
          std::vector<std::string_view> known;
          for (const auto& s : hardware.subclusters) known.push_back(s.name);
          fail("/subcluster",
               cluster_name + " has no subcluster \"" + detail::excerpt(name) + "\"; " + detail::suggestion(name, known));
        }
        mesh.subcluster = *position;
        const auto& s = subcluster_of(hardware, mesh);
        const auto at_most = [&](const char* key, int found, int most) {
          if (found > most)
            fail(key, "found " + std::to_string(found) + ", expected at most the " + std::to_string(most) + " of " + name);
        };
        at_most("/nodes", mesh.nodes, s.nodes);
        at_most("/devices_per_node", mesh.devices_per_node, s.devices_per_node);
        if (group.first_device > s.device_count() - mesh.device_count())
          fail("/first_device", "found " + std::to_string(group.first_device) + ", expected " +
                                    std::to_string(mesh.device_count()) + " devices from there on, " + name + " has " +
                                    std::to_string(s.device_count()));
        const auto me = (several ? "pipeline " + std::to_string(l) + ", " : "") + "stage " + std::to_string(i);
        for (int d = group.first_device; d < group.first_device + mesh.device_count(); ++d) {
          auto& owner = at(at(owners, *position), d);
          if (!owner.empty())
            fail("/first_device",
                 "device " + std::to_string(d) + " of " + name + " belongs to " + owner + " already, and cannot to " + me);
          owner = me;
        }
      }
  return std::move(file.plan);
}

HETSCHED_INLINE std::vector<int> device_numbers(const plan_file& file) {
  std::vector<int> found;
  if (file.device_counts.empty()) return found;
  for (const auto& line : file.plan.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) {
        const auto k = as_size(g.mesh.subcluster);
        const int last = g.first_device + g.mesh.device_count();
        if (k >= file.device_counts.size() || last > file.device_counts[k])
          throw input_error("the plan uses device " + std::to_string(last - 1) + " of " + file.subclusters.at(k) +
                            ", which has fewer");
        int before = 0;
        for (std::size_t i = 0; i < k; ++i) before += file.device_counts[i];
        for (int device = g.first_device; device < last; ++device) found.push_back(before + device);
      }
  return found;
}

}  // namespace hetsched

namespace hetsched::detail {

[[nodiscard]] inline nlohmann::ordered_json to_json(const stage_plan& s, const std::vector<std::string>& subclusters,
                                                    bool inference) {
  nlohmann::ordered_json item;
  item["layers"] = {s.layers.first, s.layers.last - 1};
  auto& devices = item["devices"] = nlohmann::ordered_json::array();
  for (const auto& g : s.devices)
    devices.push_back({{"subcluster", subclusters.at(as_size(g.mesh.subcluster))},
                       {"first_device", g.first_device},
                       {"nodes", g.mesh.nodes},
                       {"devices_per_node", g.mesh.devices_per_node}});
  auto& d = item["degrees"] = {{"data", s.degrees.data}, {"context", s.degrees.context}, {"tensor", s.degrees.tensor}};
  if (s.degrees.expert > 1) d["expert"] = s.degrees.expert;
  const auto& [data, context, tensor, state] = s.shares;
  for (const auto& [axis, parts] : {std::pair{"data", &data}, {"context", &context}, {"tensor", &tensor}, {"state", &state}})
    if (!parts->empty()) item["shares"][axis] = *parts;
  item["recompute"] = name_of(s.recompute);
  if (s.zero > 0) item["zero"] = s.zero;
  if (s.warmup > 0) item["warmup"] = s.warmup;
  item["forward_s"] = s.cost.forward_s;
  if (!inference) item["backward_s"] = s.cost.backward_s;
  if (s.cost.weight_backward_s > 0) item["weight_backward_s"] = s.cost.weight_backward_s;
  if (!inference) item["update_s"] = s.update_s;
  item["weight_bytes"] = s.cost.weight_bytes;
  if (s.cost.gradient_bytes > 0) item["gradient_bytes"] = s.cost.gradient_bytes;
  if (s.cost.optimizer_bytes > 0) item["optimizer_bytes"] = s.cost.optimizer_bytes;
  item["activation_bytes"] = s.cost.activation_bytes;
  if (s.cost.temporary_bytes > 0) item["temporary_bytes"] = s.cost.temporary_bytes;
  if (const auto& o = s.overheads; !(o == memory_overheads{}))
    item["overheads"] = {{"runtime_bytes", o.runtime_bytes},
                         {"buffer_bytes", o.buffer_bytes},
                         {"fragmentation", o.fragmentation},
                         {"margin", o.margin}};
  item["memory_bytes"] = s.memory_bytes;
  item["memory_capacity_bytes"] = s.memory_capacity_bytes;
  return item;
}

[[nodiscard]] inline nlohmann::ordered_json to_json(const boundary_plan& b) {
  nlohmann::ordered_json item{{"bytes", b.bytes}, {"forward_s", b.forward_s}, {"backward_s", b.backward_s}};
  if (b.forward_occupied_s) item["forward_occupied_s"] = *b.forward_occupied_s;
  if (b.backward_occupied_s) item["backward_occupied_s"] = *b.backward_occupied_s;
  if (!b.reshard.empty()) item["reshard"] = b.reshard;
  item["extra_bytes"] = b.extra_bytes;
  return item;
}

[[nodiscard]] inline nlohmann::ordered_json to_json(const plan_setting& s) {
  nlohmann::ordered_json item = nlohmann::ordered_json::object();
  const auto put = [&](const char* key, const std::string& text) {
    if (!text.empty()) item[key] = text;
  };
  put("costs", s.costs);
  put("granularity", s.granularity);
  if (s.sequence > 0) item["sequence"] = s.sequence;
  if (s.further_tokens > 0) item["further_tokens"] = s.further_tokens;
  put("precision", s.precision);
  put("attention", s.attention);
  if (!s.whole_layers.empty()) item["whole_layers"] = s.whole_layers;
  if (s.stack) item["stack"] = write_stack(*s.stack);
  for (const auto& a : s.anchored) item["anchored"][a.name] = write_speeds(a.speed, a.class_speeds);
  put("target", s.target);
  return item;
}

/// What a plan.json of either kind begins with, up to its pipelines, of which there are none yet.
template <class Plan>
[[nodiscard]] nlohmann::ordered_json head_of(const Plan& p, const std::vector<std::string>& subclusters,
                                             const std::vector<int>& device_counts) {
  using json = nlohmann::ordered_json;
  json out{{"format", "hetsched/plan"}, {"version", 2}};
  if (!p.planner.empty()) out["planner"] = p.planner;
  out["objective"] = name_of(p.objective);
  auto& names = out["subclusters"] = json::array();
  for (std::size_t i = 0; i < subclusters.size(); ++i) {
    names.push_back({{"name", subclusters[i]}});
    if (!device_counts.empty()) names.back()["devices"] = device_counts.at(i);
  }
  if (!(p.setting == plan_setting{})) out["setting"] = to_json(p.setting);
  out["pipelines"] = json::array();
  return out;
}

/// Counts, stages and boundaries of a pipeline.
[[nodiscard]] inline nlohmann::ordered_json to_json(const pipeline_plan& line, const std::vector<std::string>& subclusters,
                                                    bool inference) {
  nlohmann::ordered_json value{{"microbatches", line.microbatches}, {"microbatch_size", line.microbatch_size}};
  auto& stages = value["stages"] = nlohmann::ordered_json::array();
  for (const auto& s : line.stages) stages.push_back(to_json(s, subclusters, inference));
  if (line.boundaries.size() + 1 == line.stages.size()) {
    auto& boundaries = value["boundaries"] = nlohmann::ordered_json::array();
    for (const auto& b : line.boundaries) boundaries.push_back(to_json(b));
  }
  return value;
}

[[nodiscard]] inline nlohmann::ordered_json to_json(const search_evidence& e, plan_objective objective) {
  nlohmann::ordered_json told{
      {"objective_value", e.objective_value}, {"objective_bound", e.objective_bound}, {"complete", e.complete}};
  if (objective == plan_objective::iteration) told["iteration_bound"] = e.objective_bound;
  if (e.sum_bound > 0) told["sum_bound"] = e.sum_bound;
  if (!e.rule.empty()) told["rule"] = e.rule;
  if (!e.space.empty()) told["space"] = e.space;
  if (e.stopped) told["stopped"] = true;
  auto& work = told["work"] = nlohmann::ordered_json::object();
  for (const auto& [name, count] : e.work) work[name] = count;
  return told;
}

[[nodiscard]] inline std::vector<int> device_counts_of(const cluster& hardware) {
  std::vector<int> counts;
  for (const auto& s : hardware.subclusters) counts.push_back(s.device_count());
  return counts;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_json(const plan& p, const std::vector<std::string>& subclusters,
                                    const std::vector<int>& device_counts) {
  using json = nlohmann::ordered_json;
  auto out = detail::head_of(p, subclusters, device_counts);
  for (const auto& line : p.pipelines) {
    auto value = detail::to_json(line, subclusters, false);
    for (const auto& c : line.copy_sync)
      value["copy_sync"].push_back({{"owner", c.owner}, {"layer", c.layer}, {"bytes", c.bytes}, {"seconds", c.seconds}});
    value["schedule"] = {{"name", line.schedule.name}};
    if (line.schedule.actions) value["schedule"]["actions"] = to_csv(*line.schedule.actions);
    out["pipelines"].push_back(std::move(value));
  }
  if (!p.gradient_sync.empty()) {
    auto& syncs = out["gradient_sync"] = json::array();
    for (const auto& g : p.gradient_sync)
      syncs.push_back({{"layers", {g.layers.first, g.layers.last - 1}},
                       {"pipelines", g.pipelines},
                       {"bytes", g.bytes},
                       {"seconds", g.seconds}});
  }
  if (!(p.predicted == prediction{})) {
    out["predicted"] = {{"iteration_s", p.predicted.iteration_s},     {"lower_bound_s", p.predicted.lower_bound_s},
                        {"samples_per_s", p.predicted.samples_per_s}, {"mfu", p.predicted.mfu},
                        {"load_balance", p.predicted.load_balance},   {"period_s", p.predicted.period_s}};
    if (p.predicted.cost_per_sample) out["predicted"]["cost_per_sample"] = *p.predicted.cost_per_sample;
  }
  if (p.evidence) out["evidence"] = detail::to_json(*p.evidence, p.objective);
  return detail::dump(out);
}

HETSCHED_INLINE std::string to_json(const inference_plan& p, const std::vector<std::string>& subclusters,
                                    const std::vector<int>& device_counts) {
  auto out = detail::head_of(p, subclusters, device_counts);
  const auto line = forward_pipeline(p);
  auto value = detail::to_json(line, subclusters, true);
  value["schedule"] = {{"name", line.schedule.name}};
  out["pipelines"].push_back(std::move(value));
  if (p.predicted) out["predicted"] = detail::to_json(*p.predicted);
  if (p.evidence) out["evidence"] = detail::to_json(*p.evidence, p.objective);
  return detail::dump(out);
}

HETSCHED_INLINE std::string to_json(const plan& p, const cluster& hardware) {
  return to_json(p, subcluster_names(hardware), detail::device_counts_of(hardware));
}
HETSCHED_INLINE std::string to_json(const inference_plan& p, const cluster& hardware) {
  return to_json(p, subcluster_names(hardware), detail::device_counts_of(hardware));
}

}  // namespace hetsched
