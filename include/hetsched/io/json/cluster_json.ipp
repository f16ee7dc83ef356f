// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/stack_json.hpp>

namespace hetsched::detail {

[[nodiscard]] inline link read_link(const json_value& value) {
  const auto gbit = value.at("gbit_per_s");
  if (gbit.kind() == json_kind::list) gbit.expected("one number: only links between subclusters have two, there and back");
  return {.latency_s = seconds_from_us(value.at("latency_us").number(0, 1e9)), .bandwidth = gbit_per_s(gbit.positive(1e9))};
}

/// Requires: the value may have the keys nccl and nic.
[[nodiscard]] inline gpu_path read_path(const json_value& value) {
  gpu_path path;
  if (const auto nccl = value.find("nccl")) path.nccl = nccl->boolean();
  if (const auto nic = value.find("nic")) {
    path.nic = nic->name();
    if (!path.nccl) nic->fail("without NCCL no NIC is taken");
  }
  return path;
}

inline void write_path(nlohmann::ordered_json& out, const gpu_path& path) {
  if (!path.nccl) out["nccl"] = false;
  if (!path.nic.empty()) out["nic"] = path.nic;
}

/// A link inside a node; its kind, where it is not told, is what its bandwidth says between such devices.
[[nodiscard]] inline link read_node_link(const json_value& value, const device& between) {
  auto l = read_link(value);
  const auto told = value.find("kind");
  if (!told) {
    l.kind = usual_link_kind(between, l.bandwidth);
    return l;
  }
  const auto kind = find_link_kind(told->text());
  if (!kind) told->expected("one of measured, nvlink, nvlink-sharp, pcie-p2p, pcie");
  l.kind = *kind;
  return l;
}

/// The number that is read as this bandwidth.
[[nodiscard]] inline double written_gbit(double bandwidth) { return preimage(bandwidth, bandwidth * 8 / 1e9, gbit_per_s); }

inline void write_link(nlohmann::ordered_json& out, const link& l) {
  out["gbit_per_s"] = written_gbit(l.bandwidth);
  out["latency_us"] = preimage(l.latency_s, l.latency_s * 1e6, seconds_from_us);
}

/// The device that a name means: of the file's own, then of the catalogue, of which the file may have one under another name;
/// or of a device.json, beside the file unless its path is from the root.
/// `files`: gets that of the device.json.
[[nodiscard]] inline device device_of(const json_value& value, const std::map<std::string, device>& own,
                                      std::vector<std::string>& files) {
  const auto name = value.text();
  if (const auto mine = own.find(name); mine != own.end()) return mine->second;
  if (name.ends_with(".json")) {
    const auto folder = name.starts_with('/') ? std::string() : value.file().substr(0, value.file().rfind('/') + 1);
    files.push_back(folder + name);
    return hetsched::read_device(folder + name);
  }
  for (const auto& [other, mine] : own)
    if (same_device(other, name)) return mine;
  if (const auto known = find_device(name)) return *known;
  std::vector<std::string_view> names;
  for (const auto& [other, ignored] : own) names.push_back(other);
  for (const auto other : catalogue_names()) names.push_back(other);
  value.fail(unknown_device_text(name, names));
}

/// How fast a device trained a model: one of "measured".
/// `files`: gets the model's.
[[nodiscard]] inline device_anchor read_anchor(const json_value& value, const std::string& device,
                                               std::vector<std::string>& files) {
  value.object({"model", "sequence", "dtype", "degrees", "nodes", "microbatch_size", "recompute", "zero", "microbatches",
                "tokens_per_s", "layer_s", "operators"});
  device_anchor a{.device = device};
  model_options options;
  if (const auto sequence = value.find("sequence")) options.sequence = sequence->count(1, 1 << 24);
  if (const auto dtype = value.find("dtype")) {
    options.dtype = find_precision(dtype->text());
    if (!options.dtype) dtype->expected("one of fp32, tf32, fp16, bf16");
  }
  const auto model = value.at("model");
  std::string path;
  if (model.is_text()) {
    path = model.text();
    if (!path.starts_with('/')) path = value.file().substr(0, value.file().rfind('/') + 1) + path;
    files.push_back(path);
  }
  const auto read = model.is_text() ? read_model(path, options) : parse_model(model.source(), value.file(), options);
  if (!read.family) model.expected("a transformer, whose tokens can be counted");
  if (read.stored_as_fp32)
    value.fail("its model stores weights in float32: say beside it in which \"dtype\" it was trained, such as bf16");
  a.model = *read.family;
  a.precision = read.precision;
  if (const auto degrees = value.find("degrees")) {
    degrees->object({"data", "context", "tensor", "expert"});
    const auto size = [&](const char* axis) {
      const auto found = degrees->find(axis);
      return found ? found->count(1, max_devices) : 1;
    };
    a.degrees = {.data = size("data"), .context = size("context"), .tensor = size("tensor"), .expert = size("expert")};
  }
  if (const auto samples = value.find("microbatch_size")) a.microbatch_size = samples->count(1, 1'000'000);
  if (const auto nodes = value.find("nodes")) a.nodes = nodes->count(1, max_devices);
  if (const auto recompute = value.find("recompute")) {
    const auto known = find_recomputation(recompute->text());
    if (!known) recompute->expected("one of none, selective, full");
    a.recompute = *known;
  }
  if (const auto zero = value.find("zero")) a.zero = zero->count(0, 3);
  if (const auto count = value.find("microbatches")) a.microbatches = count->count(1, 1'000'000);
  if (const auto layer = value.find("layer_s")) {
    a.layer_s = layer->positive(1e9);
    for (const char* other : {"tokens_per_s", "microbatches"})
      if (value.has(other)) value.at(other).fail("is of a whole model, and \"layer_s\" beside it of one layer");
    if (const auto only = value.find("operators")) {
      const auto known = std::find(operator_class_names.begin(), operator_class_names.end(), only->text());
      if (known == operator_class_names.end()) only->expected("one of products, attention, others");
      a.only = static_cast<operator_class>(known - operator_class_names.begin());
    }
  } else {
    if (value.has("operators")) value.at("operators").fail("needs \"layer_s\": the seconds of these in one layer");
    a.tokens_per_s = value.at("tokens_per_s").positive(1e12);
  }
  return a;
}

/// A link between subclusters a and b; with two bandwidths they are from a to b, and back.
/// Requires: the value may have the keys nccl and nic.
[[nodiscard]] inline cross_link read_cross_link(const json_value& value, int a, int b) {
  cross_link l{.a = a, .b = b, .link = {}, .path = read_path(value)};
  const auto gbit = value.at("gbit_per_s");
  if (gbit.kind() != json_kind::list) {
    l.link = read_link(value);
    return l;
  }
  if (gbit.size() != 2) gbit.expected("a bandwidth, or two: from the first subcluster to the second, and back");
  l.link = {.latency_s = seconds_from_us(value.at("latency_us").number(0, 1e9)), .bandwidth = gbit_per_s(gbit[0].positive(1e9))};
  l.bandwidth_back = gbit_per_s(gbit[1].positive(1e9));
  return l;
}

/// Links between the subclusters of a cluster, which are added to it.
inline void read_links(const json_value& links, cluster& result) {
  std::map<std::string, int> position_of;
  for (std::size_t k = 0; k < result.subclusters.size(); ++k)
    position_of.emplace(result.subclusters[k].name, static_cast<int>(k));
  std::set<std::pair<int, int>> joined;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const auto value = links[i];
    value.object({"between", "gbit_per_s", "latency_us", "nccl", "nic"});
    const auto between = value.at("between");
    if (between.size() != 2) between.expected("the names of two subclusters");
    int ends[2];
    for (std::size_t e = 0; e < 2; ++e) {
      const auto position = position_of.find(between[e].text());
      if (position == position_of.end()) between[e].expected("the name of a subcluster of this file");
      ends[e] = position->second;
    }
    if (ends[0] == ends[1]) between.fail("a link joins two different subclusters; inside one it is inter_node");
    if (!joined.insert(std::minmax({ends[0], ends[1]})).second) between.fail("these two subclusters already have a link");
    result.links.push_back(detail::read_cross_link(value, ends[0], ends[1]));
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE cluster_file parse_cluster_file(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format("cluster", {"devices", "subclusters", "links", "stack", "notes"});
  std::map<std::string, device> own;
  std::vector<device_anchor> anchors;
  std::vector<std::string> files;
  if (const auto devices = top.find("devices"))
    devices->members([&](const std::string& name, const detail::json_value& value) {
      own[name] = detail::read_device(name, value, find_device(name));
      if (const auto measured = value.find("measured"))
        for (std::size_t i = 0; i < measured->size(); ++i)
          anchors.push_back(detail::read_anchor((*measured)[i], own[name].name, files));
    });

  cluster result;
  const auto subclusters = top.at("subclusters");
  if (subclusters.size() == 0) subclusters.expected("at least one subcluster");
  for (std::size_t i = 0; i < subclusters.size(); ++i) {
    const auto value = subclusters[i];
    value.object({"name", "device", "nodes", "devices_per_node", "intra_node", "inter_node", "nics", "price_per_node_hour"});
    subcluster s;
    s.name = value.at("name").name();
    if (result.find(s.name)) value.at("name").expected("a name that no other subcluster has");
    const auto device_name = value.at("device");
    s.device = detail::device_of(device_name, own, files);
    s.nodes = value.at("nodes").count(1, max_devices);
    s.devices_per_node = value.at("devices_per_node").count(1, max_devices);
    // A link that nothing uses may be left out.
    s.intra_node = s.inter_node = {.latency_s = 0, .bandwidth = gbit_per_s(1e9)};
    if (s.devices_per_node > 1 || value.has("intra_node"))
      s.intra_node = detail::read_node_link(value.at("intra_node").object({"gbit_per_s", "latency_us", "kind"}), s.device);
    if (s.nodes > 1 || value.has("inter_node"))
      s.inter_node = detail::read_link(value.at("inter_node").object({"gbit_per_s", "latency_us", "nccl", "nic"}));
    if (const auto between = value.find("inter_node")) s.inter_node_path = detail::read_path(*between);
    if (const auto nics = value.find("nics")) s.nics = nics->count(1, max_devices);
    if (const auto price = value.find("price_per_node_hour")) s.price_per_node_hour = price->number(0, 1e9);
    if (static_cast<std::int64_t>(s.nodes) * s.devices_per_node + result.device_count() > max_devices)
      value.fail("more than " + std::to_string(max_devices) + " devices in all");
    result.subclusters.push_back(std::move(s));
  }

  if (const auto links = top.find("links")) detail::read_links(*links, result);
  if (const auto notes = top.find("notes"))
    for (std::size_t i = 0; i < notes->size(); ++i) (void)(*notes)[i].text();
  const auto stack = top.find("stack");
  return {.hardware = std::move(result),
          .stack = stack ? std::optional(detail::read_stack(*stack)) : std::nullopt,
          .anchors = std::move(anchors),
          .files = std::move(files)};
}

HETSCHED_INLINE std::string to_json(const cluster& c) {
  auto devices = nlohmann::ordered_json::object();
  auto subclusters = nlohmann::ordered_json::array();
  auto links = nlohmann::ordered_json::array();
  for (const auto& s : c.subclusters) {
    devices[s.device.name] = detail::write_device(s.device);
    nlohmann::ordered_json value{
        {"name", s.name}, {"device", s.device.name}, {"nodes", s.nodes}, {"devices_per_node", s.devices_per_node}};
    detail::write_link(value["intra_node"], s.intra_node);
    if (s.intra_node.kind != usual_link_kind(s.device, s.intra_node.bandwidth))
      value["intra_node"]["kind"] = name_of(s.intra_node.kind);
    detail::write_link(value["inter_node"], s.inter_node);
    detail::write_path(value["inter_node"], s.inter_node_path);
    if (s.nics != 1) value["nics"] = s.nics;
    if (s.price_per_node_hour) value["price_per_node_hour"] = *s.price_per_node_hour;
    subclusters.push_back(std::move(value));
  }
  for (const auto& l : c.links) {
    const auto name = [&](int position) { return at(c.subclusters, position).name; };
    nlohmann::ordered_json value;
    value["between"] = {name(l.a), name(l.b)};
    detail::write_link(value, l.link);
    if (l.bandwidth_back != 0) {
      const double there = value["gbit_per_s"];
      value["gbit_per_s"] = {there, detail::written_gbit(l.bandwidth_back)};
    }
    detail::write_path(value, l.path);
    links.push_back(std::move(value));
  }
  nlohmann::ordered_json out{{"format", "hetsched/cluster"}, {"version", 1}};
  out["devices"] = std::move(devices);
  out["subclusters"] = std::move(subclusters);
  out["links"] = std::move(links);
  return detail::dump(out);
}

}  // namespace hetsched
