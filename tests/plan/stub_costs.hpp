// SPDX-License-Identifier: Apache-2.0
// Costs as a test states them, and plans on them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched::test {

/// Costs by layer and boundary, the same on every device; degrees are all data parallel or all tensor parallel.
struct stub_costs {
  std::vector<stage_cost> layers;
  std::vector<transfer_cost> boundaries;  // layers - 1; fewer: the others take no time
  std::vector<double> updates = {};       // by layer; fewer: none
  double sync_s = 0;                      // of gradients, by layer
  memory_overheads more{};
  int cut_off = -1;  // a subcluster without links
  std::vector<parameter_copy> shared = {};

  [[nodiscard]] int layer_count() const { return static_cast<int>(layers.size()); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    const int n = mesh.device_count();
    return n == 1 ? std::vector<placement>{{mesh, {}}} : std::vector<placement>{{mesh, {n, 1, 1}}, {mesh, {1, 1, n}}};
  }
  [[nodiscard]] stage_cost layer(int index, const placement&) const { return layers[static_cast<std::size_t>(index)]; }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const { return sum_of_layers(*this, range, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    if (lacks_link(from, to)) return std::numeric_limits<double>::infinity();
    const auto b = static_cast<std::size_t>(boundary);
    return b < boundaries.size() ? boundaries[b] : transfer_cost{};
  }
  [[nodiscard]] double update(layer_range range, const placement&) const {
    double sum = 0;
    for (auto i = static_cast<std::size_t>(range.first); i < std::min(static_cast<std::size_t>(range.last), updates.size()); ++i)
      sum += updates[i];
    return sum;
  }
  [[nodiscard]] reduction_cost gradient_sync(layer_range range, std::span<const placement> holders) const {
    for (const auto& a : holders)
      for (const auto& b : holders)
        if (lacks_link(a, b)) return std::numeric_limits<double>::infinity();
    return {sync_s * range.size(), 10 * range.size()};
  }
  [[nodiscard]] memory_overheads overheads(const placement&) const { return more; }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement&) const { return shared; }

 private:
  [[nodiscard]] bool lacks_link(const placement& a, const placement& b) const {
    return a.mesh.subcluster != b.mesh.subcluster && (a.mesh.subcluster == cut_off || b.mesh.subcluster == cut_off);
  }
};

/// Two subclusters: 4 devices of 100 TFLOP/s (fp16), 2 nodes of 2 of 300; 1 GiB each.
inline cluster two_kinds() {
  cluster hardware;
  for (const double tera : {100.0, 300.0}) {
    subcluster s;
    s.name = tera == 100 ? "slow" : "fast";
    s.nodes = tera == 100 ? 1 : 2;
    s.devices_per_node = tera == 100 ? 4 : 2;
    s.device = {
        .name = s.name, .peak_flops = {tera * 1e12 / 10, 0, tera * 1e12, 0}, .memory_bytes = gib, .memory_bandwidth = 1e12};
    hardware.subclusters.push_back(s);
  }
  return hardware;
}

/// `count` subclusters "s0", "s1" ... of one node of `devices` devices each, 1 GiB, 1 TFLOP/s.
inline cluster plain_cluster(int count, int devices) {
  cluster hardware;
  for (int k = 0; k < count; ++k) {
    const auto name = "s" + std::to_string(k);
    hardware.subclusters.push_back(
        {name,
         {.name = "d", .peak_flops = {1e12, 0, 1e12, 0}, .memory_bytes = gib, .memory_bandwidth = 1e12},
         1,
         devices,
         {},
         {}});
  }
  return hardware;
}

/// A stage on one device.
inline stage_plan on_device(layer_range layers, int subcluster, int device, int warmup = 0) {
  return {.layers = layers, .devices = {{{subcluster, 1, 1}, device}}, .warmup = warmup};
}

/// A pipeline of stages of so many layers each, on the devices of a subcluster from `first` on.
inline pipeline_plan line_of(const std::vector<int>& sizes, int subcluster, int first, int microbatches, std::string schedule) {
  pipeline_plan line{.microbatches = microbatches, .schedule = {.name = std::move(schedule)}};
  int layer = 0;
  for (const int size : sizes) {
    line.stages.push_back(on_device({layer, layer + size}, subcluster, first++));
    layer += size;
  }
  return line;
}

inline plan plan_of(std::vector<pipeline_plan> lines) {
  plan p;
  p.pipelines = std::move(lines);
  return p;
}

}  // namespace hetsched::test
