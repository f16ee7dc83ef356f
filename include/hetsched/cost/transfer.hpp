// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// The link between two stages: that of their subclusters; inside a subcluster of several nodes its inter_node link, else its
/// intra_node link. None where no link joins the subclusters. O(links).
[[nodiscard]] inline std::optional<link> link_between(const cluster& c, const submesh& from, const submesh& to) {
  if (from.subcluster != to.subcluster) return c.between(from.subcluster, to.subcluster);
  const auto& s = subcluster_of(c, from);
  return s.nodes > 1 ? s.inter_node : s.intra_node;
}

/// Seconds to move `bytes` over link_between; infinity where there is none. O(links).
[[nodiscard]] inline double stage_transfer_s(const cluster& c, const submesh& from, const submesh& to, double bytes) {
  const auto over = link_between(c, from, to);
  return over ? over->transfer_s(bytes) : std::numeric_limits<double>::infinity();
}

/// Pairs of replicas that move a microbatch from one stage to the next at once, each its share over a link of its own: of stages
/// on one node, as many as the side with fewer replicas has; else also no more than nodes on either side, as the replicas of a
/// node share its port.
[[nodiscard]] inline int transfer_pairs(const placement& from, const placement& to, bool on_one_node) {
  const int replicas = std::min(from.degrees.data, to.degrees.data);
  return on_one_node ? replicas : std::min({replicas, from.mesh.nodes, to.mesh.nodes});
}

/// Seconds to move a microbatch of `bytes` from one stage to the next, over the links that their replicas have: intra_node if
/// both are on one node, inter_node in one subcluster, else the link between the subclusters; infinity where there is none.
/// Inside a replica it goes over one link. O(links).
[[nodiscard]] inline double boundary_transfer_s(const cluster& c, const placement& from, const placement& to, proximity near,
                                                double bytes) {
  const bool joined = from.mesh.subcluster == to.mesh.subcluster;
  const bool on_one_node = joined && (near == proximity::same_node || subcluster_of(c, from.mesh).nodes == 1);
  const auto over = on_one_node ? subcluster_of(c, from.mesh).intra_node : link_between(c, from.mesh, to.mesh);
  return over ? over->transfer_s(bytes / transfer_pairs(from, to, on_one_node)) : std::numeric_limits<double>::infinity();
}

/// Placements of one subcluster with equal numbers have equal boundary_transfer_s to and from all others.
[[nodiscard]] constexpr int transfer_rails(const placement& p) {
  return p.mesh.nodes == 1 ? p.degrees.data : -std::min(p.degrees.data, p.mesh.nodes);
}

/// Seconds to add up `bytes` of gradients that each of several stages holds: a ring whose every hop is as slow as the slowest
/// link between any two of them; infinity where two have none. O(holders^2 * links).
[[nodiscard]] inline double ring_reduction_s(const cluster& c, std::span<const placement> holders, double bytes) {
  const double n = static_cast<double>(holders.size());
  double slowest_s = 0;
  for (std::size_t a = 0; a < holders.size(); ++a)
    for (std::size_t b = a + 1; b < holders.size(); ++b)
      slowest_s = std::max(slowest_s, stage_transfer_s(c, holders[a].mesh, holders[b].mesh, bytes / n));
  return holders.size() < 2 ? 0 : 2 * (n - 1) * slowest_s;
}

}  // namespace hetsched
