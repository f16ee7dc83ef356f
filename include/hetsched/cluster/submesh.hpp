// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/cluster/cluster.hpp>

namespace hetsched {

/// `nodes x devices_per_node` devices cut from one subcluster (position in cluster::subclusters).
struct submesh {
  int subcluster = 0;
  int nodes = 1;
  int devices_per_node = 1;

  [[nodiscard]] constexpr int device_count() const { return nodes * devices_per_node; }
  friend constexpr bool operator==(submesh, submesh) = default;
};

/// The subcluster that a submesh is cut from.
[[nodiscard]] inline const subcluster& subcluster_of(const cluster& c, const submesh& mesh) {
  HETSCHED_EXPECTS(mesh.subcluster >= 0 && mesh.subcluster < static_cast<int>(c.subclusters.size()));
  return c.subclusters[static_cast<std::size_t>(mesh.subcluster)];
}

/// Shapes that a stage may take in a subcluster of N nodes x M devices (HARP sec. 5.2.2):
/// (1,1), (1,2), (1,4) ... (1,M) and (2,M) ... (N,M), ordered by device count.
/// With several nodes of a number of devices that is no power of two, the powers that do not divide M are left out:
/// then every set of shapes with at most N*M devices in all can be packed onto the nodes.
[[nodiscard]] inline std::vector<submesh> submeshes(const subcluster& s, int position) {
  std::vector<submesh> shapes;
  for (int m = 1; m < s.devices_per_node; m *= 2)
    if (s.nodes == 1 || s.devices_per_node % m == 0) shapes.push_back({position, 1, m});
  for (int n = 1; n <= s.nodes; ++n) shapes.push_back({position, n, s.devices_per_node});
  return shapes;
}

}  // namespace hetsched
