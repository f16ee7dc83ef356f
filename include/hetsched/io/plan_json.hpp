// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/pipeline_json.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Contents of a plan.json. `where.mesh.subcluster` of its stages counts in `subclusters`: the names in the file, in order
/// of their first appearance. The evidence of the search and `update_s` are not in the file.
struct plan_file {
  hetsched::plan plan;
  std::vector<std::string> subclusters;
  friend bool operator==(const plan_file&, const plan_file&) = default;
};

namespace detail {

[[nodiscard]] inline stage_plan read_stage(const json_value& value, std::vector<std::string>& subclusters) {
  value.object({"layers", "subcluster", "first_device", "nodes", "devices_per_node", "degrees", "warmup", "forward_s",
                "backward_s", "transfer_s", "memory_bytes", "memory_capacity_bytes", "weight_backward_s", "weight_bytes",
                "activation_bytes"});
  stage_plan stage;
  const auto layers = value.at("layers");
  if (layers.size() != 2) layers.expected("[first, last], both included");
  stage.layers.first = layers[0].count(0);
  stage.layers.last = layers[1].count(stage.layers.first) + 1;

  const auto name = value.at("subcluster").name();
  auto position = std::find(subclusters.begin(), subclusters.end(), name);
  stage.where.mesh.subcluster = static_cast<int>(position - subclusters.begin());
  if (position == subclusters.end()) subclusters.push_back(name);

  stage.first_device = value.at("first_device").count(0);
  stage.where.mesh.nodes = value.at("nodes").count();
  stage.where.mesh.devices_per_node = value.at("devices_per_node").count();
  const std::int64_t devices = std::int64_t{stage.where.mesh.nodes} * stage.where.mesh.devices_per_node;
  if (devices > 1'000'000) value.fail("more than 1000000 devices in one stage");
  const auto degrees = value.at("degrees");
  degrees.object({"data", "context", "tensor"});
  stage.where.degrees = {
      .data = degrees.at("data").count(), .context = degrees.at("context").count(), .tensor = degrees.at("tensor").count()};
  const auto& d = stage.where.degrees;
  if (static_cast<double>(d.data) * d.context * d.tensor != static_cast<double>(devices))
    degrees.fail("data x context x tensor must be the " + std::to_string(devices) + " devices of the stage");

  stage.warmup = value.at("warmup").count(1, max_microbatches);
  stage.forward_s = value.at("forward_s").number(0, max_seconds);
  stage.backward_s = value.at("backward_s").number(0, max_seconds);
  stage.transfer_s = value.at("transfer_s").number(0, max_seconds);
  stage.memory_bytes = value.at("memory_bytes").bytes();
  stage.memory_capacity_bytes = value.at("memory_capacity_bytes").bytes();
  if (const auto weight = value.find("weight_backward_s")) {
    stage.weight_backward_s = weight->number(0, max_seconds);
    if (stage.weight_backward_s > stage.backward_s) weight->expected("at most the stage's backward_s");
  }
  if (const auto weights = value.find("weight_bytes")) stage.weight_bytes = weights->bytes();
  if (const auto activation = value.find("activation_bytes")) stage.activation_bytes = activation->bytes();
  return stage;
}

[[nodiscard]] inline pipeline_plan read_pipeline_plan(const json_value& value, std::vector<std::string>& subclusters) {
  value.object({"microbatches", "microbatch_size", "stages"});
  pipeline_plan result;
  result.microbatches = value.at("microbatches").count(1, max_microbatches);
  result.microbatch_size = value.at("microbatch_size").count();
  const auto stages = value.at("stages");
  if (stages.size() == 0) stages.expected("at least one stage");
  if (stages.size() > static_cast<std::size_t>(max_stages)) stages.expected("at most " + std::to_string(max_stages) + " stages");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    auto stage = read_stage(stages[i], subclusters);
    const int next = result.stages.empty() ? 0 : result.stages.back().layers.last;
    if (stage.layers.first != next)
      stages[i].at("layers").fail("starts at layer " + std::to_string(stage.layers.first) + ", expected " + std::to_string(next));
    if (i + 1 == stages.size() && stage.transfer_s != 0)
      stages[i].at("transfer_s").expected("0, the last stage sends nothing on");
    result.stages.push_back(stage);
  }
  return result;
}

[[nodiscard]] inline prediction read_prediction(const json_value& value) {
  value.object({"iteration_s", "lower_bound_s", "samples_per_s", "mfu", "load_balance", "period_s"});
  return {.iteration_s = value.at("iteration_s").number(0, max_json_number),
          .lower_bound_s = value.at("lower_bound_s").number(0, max_json_number),
          .samples_per_s = value.at("samples_per_s").number(0, max_json_number),
          .mfu = value.at("mfu").number(0, max_json_number),
          .load_balance = value.at("load_balance").number(0, max_json_number),
          .period_s = value.at("period_s").number(0, max_json_number)};
}

}  // namespace detail

/// Reads a plan.json from its text. Throws file_error. O(size).
[[nodiscard]] inline plan_file parse_plan(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format("plan", {"planner", "microbatches", "pipelines", "schedule", "predicted"});
  plan_file result;
  plan& p = result.plan;
  p.planner = top.at("planner").name();
  p.microbatches = top.at("microbatches").count(1, detail::max_microbatches);
  p.schedule = top.at("schedule").name();
  const auto pipelines = top.at("pipelines");
  if (pipelines.size() == 0) pipelines.expected("at least one pipeline");
  std::int64_t microbatches = 0;
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    p.pipelines.push_back(detail::read_pipeline_plan(pipelines[i], result.subclusters));
    microbatches += p.pipelines.back().microbatches;
  }
  if (microbatches != p.microbatches)
    top.at("microbatches").expected(std::to_string(microbatches) + ", the sum over the pipelines");
  p.predicted = detail::read_prediction(top.at("predicted"));
  return result;
}

/// Reads a plan.json. Throws file_error.
[[nodiscard]] inline plan_file read_plan(const std::string& path) { return parse_plan(read_text(path), path); }

/// Text of a plan.json that parse_plan takes back equal, save for what is not in the file.
/// Precondition: `subclusters` holds the names that `where.mesh.subcluster` counts.
[[nodiscard]] inline std::string to_json(const plan& p, const std::vector<std::string>& subclusters) {
  auto pipelines = nlohmann::ordered_json::array();
  for (const auto& line : p.pipelines) {
    auto stages = nlohmann::ordered_json::array();
    for (const auto& s : line.stages) {
      nlohmann::ordered_json item;
      item["layers"] = {s.layers.first, s.layers.last - 1};
      item["subcluster"] = subclusters.at(static_cast<std::size_t>(s.where.mesh.subcluster));
      item["first_device"] = s.first_device;
      item["nodes"] = s.where.mesh.nodes;
      item["devices_per_node"] = s.where.mesh.devices_per_node;
      item["degrees"] = {
          {"data", s.where.degrees.data}, {"context", s.where.degrees.context}, {"tensor", s.where.degrees.tensor}};
      item["warmup"] = s.warmup;
      item["forward_s"] = s.forward_s;
      item["backward_s"] = s.backward_s;
      item["transfer_s"] = s.transfer_s;
      item["memory_bytes"] = s.memory_bytes;
      item["memory_capacity_bytes"] = s.memory_capacity_bytes;
      if (s.weight_backward_s > 0) item["weight_backward_s"] = s.weight_backward_s;
      if (s.weight_bytes > 0) item["weight_bytes"] = s.weight_bytes;
      if (s.activation_bytes > 0) item["activation_bytes"] = s.activation_bytes;
      stages.push_back(std::move(item));
    }
    nlohmann::ordered_json value{{"microbatches", line.microbatches}, {"microbatch_size", line.microbatch_size}};
    value["stages"] = std::move(stages);
    pipelines.push_back(std::move(value));
  }
  nlohmann::ordered_json out{
      {"format", "hetsched/plan"}, {"version", 1}, {"planner", p.planner}, {"microbatches", p.microbatches}};
  out["pipelines"] = std::move(pipelines);
  out["schedule"] = p.schedule;
  out["predicted"] = {{"iteration_s", p.predicted.iteration_s},     {"lower_bound_s", p.predicted.lower_bound_s},
                      {"samples_per_s", p.predicted.samples_per_s}, {"mfu", p.predicted.mfu},
                      {"load_balance", p.predicted.load_balance},   {"period_s", p.predicted.period_s}};
  return detail::dump(out);
}

/// Names of the subclusters, by position.
[[nodiscard]] inline std::vector<std::string> subcluster_names(const cluster& c) {
  std::vector<std::string> names;
  for (const auto& s : c.subclusters) names.push_back(s.name);
  return names;
}

}  // namespace hetsched
