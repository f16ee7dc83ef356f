// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/round_trip_test.cpp.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cost/profile.hpp>
#include <hetsched/io/json/json_reader.hpp>
#include <hetsched/io/json/pipeline_json.hpp>

namespace hetsched {

/// Most layers that a model or profile file may have.
inline constexpr int max_layers = 100'000;

namespace detail {

[[nodiscard]] inline profile_entry read_profile_entry(const json_value& value, std::size_t layers) {
  value.object(
      {"subcluster", "device", "nodes", "devices", "degrees", "forward_s", "backward_s", "weight_bytes", "activation_bytes"});
  profile_entry entry;
  if (value.has("subcluster") == value.has("device")) value.fail("expected either the key \"subcluster\" or the key \"device\"");
  if (const auto name = value.find("subcluster")) entry.subcluster = name->name();
  if (const auto name = value.find("device")) entry.device = name->name();
  entry.nodes = value.at("nodes").count();
  entry.devices = value.at("devices").count();
  if (const auto given = value.find("degrees")) {
    given->object({"data", "context", "tensor"});
    const auto size = [&](const char* key) { return given->has(key) ? given->at(key).count() : 1; };
    entry.degrees = degrees{.data = size("data"), .context = size("context"), .tensor = size("tensor")};
    const double product = static_cast<double>(entry.degrees->data) * entry.degrees->context * entry.degrees->tensor;
    if (product != static_cast<double>(entry.nodes) * entry.devices)
      given->fail("data x context x tensor must be the " + std::to_string(std::int64_t{entry.nodes} * entry.devices) +
                  " devices of the shape");
  }
  const auto seconds = [&](const char* key) { return read_seconds(value.at(key).sized(layers, "layer")); };
  const auto bytes = [&](const char* key) {
    return value.at(key).sized(layers, "layer").list([](const json_value& amount) { return amount.bytes(); });
  };
  entry.forward_s = seconds("forward_s");
  entry.backward_s = seconds("backward_s");
  entry.weight_bytes = bytes("weight_bytes");
  entry.activation_bytes = bytes("activation_bytes");
  return entry;
}

}  // namespace detail

/// Reads a profile.json from its text. What depends on the cluster (names of subclusters, and a subcluster and a device entry
/// for one shape) is checked by profile_cost_model.
/// Throws: file_error.
/// Complexity: O(size + entries^2).
[[nodiscard]] inline profile parse_profile(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format("profile", {"layers", "costs"});
  profile result;
  const auto layers = top.at("layers");
  if (layers.size() == 0 || layers.size() > static_cast<std::size_t>(max_layers))
    layers.expected("1 to " + std::to_string(max_layers) + " layers");
  result.layers = layers.list([](const detail::json_value& value) {
    value.object({"name", "boundary_bytes"});
    return profiled_layer{.name = value.at("name").name(), .boundary_bytes = value.at("boundary_bytes").bytes()};
  });
  const auto costs = top.at("costs");
  if (costs.size() == 0) costs.expected("at least one entry");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    auto entry = detail::read_profile_entry(costs[i], result.layers.size());
    const auto key = [](const profile_entry& e) {
      const auto d = e.degrees.value_or(degrees{.data = 1, .context = 1, .tensor = e.nodes * e.devices});
      return std::tuple(e.subcluster, e.device, e.nodes, e.devices, d.data, d.context, d.tensor);
    };
    for (std::size_t other = 0; other < i; ++other)
      if (key(result.entries[other]) == key(entry))
        costs[i].fail("the same shape and degrees as /costs/" + std::to_string(other));
    result.entries.push_back(std::move(entry));
  }
  return result;
}

/// Reads a profile.json.
/// Throws: file_error.
[[nodiscard]] inline profile read_profile(const std::string& path) { return parse_profile(read_text(path), path); }

/// The text of a profile.json that parse_profile reads back as an equal profile.
[[nodiscard]] inline std::string to_json(const profile& p) {
  auto layers = nlohmann::ordered_json::array();
  for (const auto& l : p.layers) layers.push_back({{"name", l.name}, {"boundary_bytes", l.boundary_bytes}});
  auto costs = nlohmann::ordered_json::array();
  for (const auto& e : p.entries) {
    nlohmann::ordered_json value;
    if (!e.subcluster.empty()) value["subcluster"] = e.subcluster;
    if (!e.device.empty()) value["device"] = e.device;
    value["nodes"] = e.nodes;
    value["devices"] = e.devices;
    if (e.degrees) value["degrees"] = {{"data", e.degrees->data}, {"context", e.degrees->context}, {"tensor", e.degrees->tensor}};
    value["forward_s"] = e.forward_s;
    value["backward_s"] = e.backward_s;
    value["weight_bytes"] = e.weight_bytes;
    value["activation_bytes"] = e.activation_bytes;
    costs.push_back(std::move(value));
  }
  nlohmann::ordered_json out{{"format", "hetsched/profile"}, {"version", 1}};
  out["layers"] = std::move(layers);
  out["costs"] = std::move(costs);
  return detail::dump(out);
}

}  // namespace hetsched
