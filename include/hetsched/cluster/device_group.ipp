// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/compiled.hpp>

namespace hetsched {

HETSCHED_INLINE proximity proximity_of(const std::vector<device_group>& a, const std::vector<device_group>& b,
                                       int devices_per_node) {
  const auto& first = a.front();
  const auto node = first.first_device / devices_per_node;
  const auto there = [&](const device_group& g) {
    return g.mesh.subcluster == first.mesh.subcluster && g.first_device / devices_per_node == node &&
           (g.first_device + g.mesh.device_count() - 1) / devices_per_node == node;
  };
  for (const auto* groups : {&a, &b})
    for (const auto& g : *groups)
      if (!there(g)) return proximity::other_node;
  return proximity::same_node;
}

HETSCHED_INLINE submesh shape_of(const std::vector<device_group>& groups) {
  HETSCHED_EXPECTS(!groups.empty());
  auto whole = groups.front().mesh;
  for (auto g = groups.begin() + 1; g != groups.end(); ++g) {
    if (g->mesh.subcluster != whole.subcluster || g->mesh.devices_per_node != whole.devices_per_node)
      throw input_error("the devices of one stage must lie in one subcluster, equally many on each node");
    whole.nodes += g->mesh.nodes;
  }
  return whole;
}

}  // namespace hetsched
