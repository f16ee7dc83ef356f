// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdint>
#include <string>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>

namespace hetsched::detail {

/// Requires groups, of at least one device each. Returns: the number of their devices.
inline int expect_groups(const std::vector<device_group>& groups) {
  if (groups.empty()) throw input_error("a stage has no groups of devices");
  std::int64_t count = 0;
  for (const auto& g : groups) {
    if (g.mesh.nodes < 1 || g.mesh.devices_per_node < 1)
      throw input_error("a group of " + std::to_string(g.mesh.nodes) + "x" + std::to_string(g.mesh.devices_per_node) +
                        " devices, expected at least 1x1");
    count += std::int64_t{g.mesh.nodes} * g.mesh.devices_per_node;
    if (count > INT_MAX) expect_count(count, "the number of devices of groups", 1, INT_MAX);
  }
  return static_cast<int>(count);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE proximity proximity_of(const std::vector<device_group>& a, const std::vector<device_group>& b,
                                       int devices_per_node) {
  detail::expect_count(devices_per_node, "devices_per_node");
  for (const auto* groups : {&a, &b}) {
    detail::expect_groups(*groups);
    for (const auto& g : *groups)
      if (g.first_device < 0 || g.first_device > INT_MAX - g.mesh.device_count())
        detail::expect_count(g.first_device, "the first device of a group", 0, INT_MAX - g.mesh.device_count());
  }
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

HETSCHED_INLINE int device_count(const std::vector<device_group>& groups) {
  return groups.empty() ? 0 : detail::expect_groups(groups);
}

HETSCHED_INLINE submesh shape_of(const std::vector<device_group>& groups) {
  detail::expect_groups(groups);
  auto whole = groups.front().mesh;
  for (auto g = groups.begin() + 1; g != groups.end(); ++g) {
    if (g->mesh.subcluster != whole.subcluster || g->mesh.devices_per_node != whole.devices_per_node)
      throw input_error("the devices of one stage must lie in one subcluster, equally many on each node");
    whole.nodes += g->mesh.nodes;
  }
  return whole;
}

}  // namespace hetsched
