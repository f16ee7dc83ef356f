// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/plan/transport.hpp>

namespace hetsched {

HETSCHED_INLINE transport_choice choose_transport(const cluster& hardware, const std::vector<device_group>& from,
                                                  const std::vector<device_group>& to) {
  for (const auto* side : {&from, &to}) {
    static_cast<void>(shape_of(*side));
    for (const auto& g : *side) static_cast<void>(subcluster_of(hardware, g.mesh));
  }
  const int a = from.front().mesh.subcluster, b = to.front().mesh.subcluster;
  const auto& s = at(hardware.subclusters, a);
  const auto& t = at(hardware.subclusters, b);
  if (from == to) return {transport::same_devices, {}, "both stages are on the same devices"};
  if (a == b && proximity_of(from, to, s.devices_per_node) == proximity::same_node)
    return {transport::peer, {}, "all devices are on one node of " + s.name};
  const auto between = a == b ? "the nodes of " + s.name : s.name + " and " + t.name;
  gpu_path path = s.inter_node_path;
  for (const auto& l : hardware.links)
    if (a != b && ((l.a == a && l.b == b) || (l.a == b && l.b == a))) path = l.path;
  if (!path.nccl) return {transport::staged, {}, "NCCL does not join " + between};
  return {transport::nccl, path.nic, "NCCL joins " + between};
}

}  // namespace hetsched
