// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <hetsched/planners/interop_dp/search.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched::detail {

/// First devices of stages that are packed into their subclusters. Larger shapes come first: as each shape's size is a multiple
/// of the next smaller one's (see submeshes), every stage then lies on whole nodes, or on consecutive devices of one node.
[[nodiscard]] inline std::vector<int> pack_devices(const std::vector<submesh>& meshes) {
  std::vector<std::size_t> largest_first(meshes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return meshes[a].device_count() > meshes[b].device_count(); });
  std::vector<int> used, first(meshes.size());
  for (const auto i : largest_first) {
    const auto k = static_cast<std::size_t>(meshes[i].subcluster);
    if (used.size() <= k) used.resize(k + 1);
    first[i] = used[k];
    used[k] += meshes[i].device_count();
  }
  return first;
}

/// A pipeline with the costs that a model gives its stages. Memory counts min(warm-up, M) microbatches in flight.
template <stage_cost_model Costs>
[[nodiscard]] pipeline_plan assemble_pipeline(const cluster& hardware, const Costs& costs, const std::vector<layer_range>& layers,
                                              const std::vector<placement>& where, const std::vector<int>& warmups,
                                              int microbatches, int microbatch_size) {
  pipeline_plan result{microbatches, microbatch_size, {}};
  std::vector<submesh> meshes;
  for (const auto& p : where) meshes.push_back(p.mesh);
  const auto first = pack_devices(meshes);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const stage_cost cost = cost_of::stage(costs, layers[i], where[i]);
    stage_plan s{layers[i], where[i], first[i], std::min(warmups[i], microbatches), cost.forward_s, cost.backward_s, 0, 0, 0, 0};
    if (i + 1 < layers.size()) s.transfer_s = cost_of::transfer(costs, layers[i].last - 1, where[i], where[i + 1]);
    s.update_s = cost_of::update(costs, layers[i], where[i]);
    s.memory_bytes = checked_add(cost.weight_bytes, checked_mul(s.warmup, cost.activation_bytes));
    s.memory_capacity_bytes = subcluster_of(hardware, where[i].mesh).device.memory_bytes;
    result.stages.push_back(s);
  }
  return result;
}

}  // namespace hetsched::detail
