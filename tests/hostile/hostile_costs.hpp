// SPDX-License-Identifier: Apache-2.0
// A small cluster, and costs of a chain that may be wrong in one answer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

#include "hostile.hpp"

namespace hetsched::test {

/// Two subclusters of two devices, one of which may be no cluster.
[[nodiscard]] inline cluster some_hardware(random_source& r) {
  cluster c{.subclusters = {{"a", catalogue_device("T4"), 1, 2, {1e-6, 1e10}, {1e-5, 1e9}, {}},
                            {"b", catalogue_device("A10"), 2, 1, {1e-6, 1e10}, {1e-5, 1e9}, {}}},
            .links = {{0, 1, {1e-4, 1e9}}}};
  for (auto& s : c.subclusters) s.device.price_per_hour = 1;
  if (!one_in(r, 6)) return c;
  switch (auto& s = one_of(r, c.subclusters); r.integer(0, 7)) {
    case 0:
      s.nodes = some_count(r, 2);
      break;
    case 1:
      s.devices_per_node = one_in(r, 2) ? 0 : -1;
      break;
    case 2:
      s.intra_node.bandwidth = s.inter_node.bandwidth = some_double(r);
      break;
    case 3:
      c.links[0].link.latency_s = some_double(r);
      break;
    case 4:
      c.links[0].b = some_int(r);
      break;
    case 5:
      c.links.clear();
      break;
    case 6:
      s.device.price_per_hour = some_double(r);
      break;
    default:
      c.subclusters.clear();
  }
  return c;
}

/// Of four layers; forward and backward each take a second, more or less.
struct hostile_costs {
  int layers = 4;
  int wrong = -1;           // the answer that is
  double number = 1;        // what is answered there
  std::int64_t bytes = 10;  // likewise

  [[nodiscard]] int layer_count() const { return wrong == 0 ? (number > 0 ? 1 : 0) : layers; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> all{{.mesh = mesh, .degrees = {.data = mesh.device_count()}}};
    if (mesh.device_count() == 2) all.push_back({.mesh = mesh, .degrees = {.tensor = 2}});
    if (wrong == 1) all[0].degrees.data += 1;
    if (wrong == 2) all[0].mesh.subcluster = 7;
    if (wrong == 3) all.clear();
    return all;
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    stage_cost c{
        .forward_s = (1. + index % 2) / where.degrees.data, .backward_s = 2, .weight_bytes = 1000, .activation_bytes = 10};
    if (wrong == 4) c.forward_s = number;
    if (wrong == 5) c.backward_s = c.sums_s = number;
    if (wrong == 6) c.weight_bytes = bytes;
    if (wrong == 7) c.activation_bytes = bytes;
    return c;
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    stage_cost sum;
    for (int l = range.first; l < range.last; ++l) sum += layer(l, where);
    return sum;
  }
  [[nodiscard]] transfer_cost transfer(int, const placement&, const placement&) const {
    transfer_cost c(.1);
    if (wrong == 8) c.forward_s = number;
    if (wrong == 9) c.backward_occupied_s = number;
    if (wrong == 10) c.extra_bytes = bytes;
    return c;
  }
  [[nodiscard]] double update(layer_range, const placement&) const { return wrong == 11 ? number : .01; }
  [[nodiscard]] reduction_cost gradient_sync(layer_range, std::span<const placement>) const {
    return wrong == 12 ? reduction_cost(number) : wrong == 13 ? reduction_cost(.1, bytes) : reduction_cost(.1, 100);
  }
  [[nodiscard]] memory_overheads overheads(const placement&) const {
    memory_overheads o;
    if (wrong == 14) o.runtime_bytes = bytes;
    if (wrong == 15) o.margin = number;
    return o;
  }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement&) const {
    if (wrong == 16) return {{.owner = 0, .layer = 3, .weight_bytes = bytes}};
    if (wrong == 17) return {{.owner = 0, .layer = static_cast<int>(bytes % 100), .weight_bytes = 10}};
    return {};
  }
};

[[nodiscard]] inline hostile_costs some_costs(random_source& r) {
  if (one_in(r, 2)) return {};
  return {.wrong = r.integer(0, 17), .number = some_double(r), .bytes = some_int64(r)};
}

}  // namespace hetsched::test
