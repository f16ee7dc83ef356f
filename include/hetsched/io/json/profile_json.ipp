// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/json/detail/copied_part_json.hpp>
#include <hetsched/io/json/profile_json.hpp>

namespace hetsched::detail {

/// The subcluster or the device that a row of costs is for.
template <class Row>
void read_owner(const json_value& value, Row& row) {
  if (value.has("subcluster") == value.has("device")) value.fail("expected either the key \"subcluster\" or the key \"device\"");
  if (const auto name = value.find("subcluster")) row.subcluster = name->name();
  if (const auto name = value.find("device")) row.device = name->name();
}

/// A number of bytes for each layer.
[[nodiscard]] inline std::vector<bytes_t> read_layer_bytes(const json_value& value, std::size_t layers) {
  return value.sized(layers, "layer").list([](const json_value& amount) { return amount.bytes(); });
}

[[nodiscard]] inline profile_entry read_profile_entry(const json_value& value, std::size_t layers) {
  value.object(
      {"subcluster", "device", "nodes", "devices", "degrees", "forward_s", "backward_s", "weight_bytes", "activation_bytes"});
  profile_entry entry;
  read_owner(value, entry);
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
  const auto bytes = [&](const char* key) { return read_layer_bytes(value.at(key), layers); };
  entry.forward_s = seconds("forward_s");
  entry.backward_s = seconds("backward_s");
  entry.weight_bytes = bytes("weight_bytes");
  entry.activation_bytes = bytes("activation_bytes");
  return entry;
}

[[nodiscard]] inline replica_row read_replica_row(const json_value& value, std::size_t layers) {
  value.object({"subcluster", "device", "nodes", "tensor", "context", "microbatch_size", "forward_s", "backward_s",
                "weight_bytes", "activation_bytes", "gradient_bytes", "update_s"});
  replica_row row;
  read_owner(value, row);
  const auto size = [&](const char* key) { return value.has(key) ? value.at(key).count() : 1; };
  row.nodes = size("nodes");
  row.tensor = size("tensor");
  row.context = size("context");
  const auto devices = std::int64_t{row.tensor} * row.context;
  if (devices > max_replica_devices)
    value.fail("tensor x context is " + std::to_string(devices) + ", expected at most " + std::to_string(max_replica_devices));
  if (devices % row.nodes != 0)
    value.at("nodes").expected("a divisor of the " + std::to_string(devices) + " devices of tensor x context");
  row.microbatch_size = value.at("microbatch_size").count();
  const auto seconds = [&](const char* key) { return read_seconds(value.at(key).sized(layers, "layer")); };
  row.forward_s = seconds("forward_s");
  row.backward_s = seconds("backward_s");
  row.weight_bytes = read_layer_bytes(value.at("weight_bytes"), layers);
  row.activation_bytes = read_layer_bytes(value.at("activation_bytes"), layers);
  if (const auto gradients = value.find("gradient_bytes")) {
    row.gradient_bytes = read_layer_bytes(*gradients, layers);
    for (std::size_t l = 0; l < layers; ++l)
      if (row.gradient_bytes[l] > row.weight_bytes[l])
        (*gradients)[l].expected("at most the " + std::to_string(row.weight_bytes[l]) +
                                 " of weight_bytes, of which it is a part");
  }
  if (value.has("update_s")) row.update_s = seconds("update_s");
  return row;
}

[[nodiscard]] inline nlohmann::ordered_json profile_layer_json(const auto& layer, const char* bytes_key, bytes_t bytes) {
  nlohmann::ordered_json value{{"name", layer.name}, {bytes_key, bytes}};
  if (const auto& c = layer.copy_of) value["copy_of"] = {{"layer", c->layer}, {"fraction", c->fraction}};
  return value;
}

/// The layers of a profile: each a name, bytes under a key of the version's own, and what it shares.
template <class Layer>
[[nodiscard]] std::vector<Layer> read_profile_layers(const json_value& top, const char* bytes_key) {
  const auto layers = top.at("layers");
  if (layers.size() == 0 || layers.size() > as_size(max_layers))
    layers.expected("1 to " + std::to_string(max_layers) + " layers");
  std::vector<Layer> found;
  const int count = static_cast<int>(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto value = layers[i].object({"name", bytes_key, "copy_of"});
    auto& layer = found.emplace_back(Layer{value.at("name").name(), value.at(bytes_key).bytes()});
    if (const auto copy = value.find("copy_of")) layer.copy_of = read_copied_part(*copy, static_cast<int>(i), count);
  }
  return found;
}

HETSCHED_INLINE profile read_profile_1(const json_value& top) {
  profile result{.layers = read_profile_layers<profiled_layer>(top, "boundary_bytes"), .entries = {}};
  const auto costs = top.at("costs");
  if (costs.size() == 0) costs.expected("at least one entry");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    auto entry = read_profile_entry(costs[i], result.layers.size());
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

[[nodiscard]] inline replica_profile read_profile_2(const json_value& top) {
  replica_profile result{.layers = read_profile_layers<replica_layer>(top, "boundary_bytes_per_sample"), .rows = {}};
  const auto costs = top.at("costs");
  if (costs.size() == 0) costs.expected("at least one row");
  // The rows of each replica, by size.
  std::map<std::tuple<std::string, std::string, int, int, int>, std::map<int, std::size_t>> places;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    auto row = read_replica_row(costs[i], result.layers.size());
    auto& sizes = places[{row.subcluster, row.device, row.nodes, row.tensor, row.context}];
    const auto [same, is_new] = sizes.try_emplace(row.microbatch_size, i);
    if (!is_new) costs[i].fail("the same replica and microbatch_size as /costs/" + std::to_string(same->second));
    for (const auto& [ignored, other] : sizes) {
      if (other == i) continue;
      const auto alike = [&](bool has, bool other_has, const std::string& name) {
        if (has != other_has)
          costs[i].fail((has ? "has " : "lacks ") + name + ", expected it in all rows of a replica or in none, but /costs/" +
                        std::to_string(other) + (has ? " lacks it" : " has it"));
      };
      alike(!row.gradient_bytes.empty(), !result.rows[other].gradient_bytes.empty(), "gradient_bytes");
      alike(!row.update_s.empty(), !result.rows[other].update_s.empty(), "update_s");
      break;  // all others are like this one
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE profile_file parse_profile_file(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const int version = document.version_of("profile", 2);
  const auto top = document.with_keys({"layers", "costs"});
  if (version == 1) return detail::read_profile_1(top);
  return detail::read_profile_2(top);
}

HETSCHED_INLINE std::string to_json(const profile& p) {
  auto layers = nlohmann::ordered_json::array();
  for (const auto& l : p.layers) layers.push_back(detail::profile_layer_json(l, "boundary_bytes", l.boundary_bytes));
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

HETSCHED_INLINE std::string to_json(const replica_profile& p) {
  auto layers = nlohmann::ordered_json::array();
  for (const auto& l : p.layers)
    layers.push_back(detail::profile_layer_json(l, "boundary_bytes_per_sample", l.boundary_bytes_per_sample));
  auto costs = nlohmann::ordered_json::array();
  for (const auto& r : p.rows) {
    nlohmann::ordered_json value;
    if (!r.subcluster.empty()) value["subcluster"] = r.subcluster;
    if (!r.device.empty()) value["device"] = r.device;
    if (r.nodes != 1) value["nodes"] = r.nodes;
    value["tensor"] = r.tensor;
    value["context"] = r.context;
    value["microbatch_size"] = r.microbatch_size;
    value["forward_s"] = r.forward_s;
    value["backward_s"] = r.backward_s;
    value["weight_bytes"] = r.weight_bytes;
    value["activation_bytes"] = r.activation_bytes;
    if (!r.gradient_bytes.empty()) value["gradient_bytes"] = r.gradient_bytes;
    if (!r.update_s.empty()) value["update_s"] = r.update_s;
    costs.push_back(std::move(value));
  }
  nlohmann::ordered_json out{{"format", "hetsched/profile"}, {"version", 2}};
  out["layers"] = std::move(layers);
  out["costs"] = std::move(costs);
  return detail::dump(out);
}

}  // namespace hetsched
