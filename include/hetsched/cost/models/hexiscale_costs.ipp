// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>

namespace hetsched {

HETSCHED_INLINE reduction_cost hexiscale_cost_model::gradient_sync(layer_range layers, std::span<const placement> holders) const {
  const auto bytes = detail::whole_bytes(shape_.parameter_bytes() * layers.size());
  if (holders.size() < 2) return {0, bytes};
  const double whole = shape_.parameter_bytes();
  int devices = 0, finest = 1;
  for (const auto& h : holders) {
    devices += h.mesh.device_count();
    finest = std::max(finest, h.degrees.tensor);
  }
  double slowest = 0;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const int own = holders[i].mesh.device_count();
    const bool all = options_.reduction == hexiscale_reduction::all;
    // Chunks on this device, and what one exchange moves to each other device.
    const double chunks = all ? 1 : static_cast<double>(finest) / own;
    const double part = whole / (all ? devices : finest * static_cast<double>(holders.size()));
    double seconds = 0;
    for (std::size_t j = 0; j < holders.size(); ++j) {
      if (i == j) continue;
      const auto over = between_nodes(holders[i].mesh.subcluster, holders[j].mesh.subcluster);
      if (!over) return infinity;
      seconds += (all ? holders[j].mesh.device_count() : 1) * over->transfer_s(part);
    }
    seconds *= chunks;
    if (all && own > 1) seconds += (own - 1) * subcluster_of(cluster_, holders[i].mesh).intra_node.transfer_s(part);
    slowest = std::max(slowest, seconds);
  }
  return {2 * slowest * layers.size(), bytes};
}

}  // namespace hetsched
