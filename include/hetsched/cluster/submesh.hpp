// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

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
/// Throws: input_error if the cluster does not have it.
[[nodiscard]] inline const subcluster& subcluster_of(const cluster& c, const submesh& mesh) {
  if (mesh.subcluster < 0 || as_size(mesh.subcluster) >= c.subclusters.size())
    throw input_error("a submesh is on subcluster " + std::to_string(mesh.subcluster) + " of a cluster that has " +
                      std::to_string(c.subclusters.size()));
  return at(c.subclusters, mesh.subcluster);
}

/// The shapes that a stage may take in a subcluster of N nodes with M devices each: (1,1), (1,2), (1,4) ... (1,M), (2,M) ...
/// (N,M), by device count. With several nodes, powers of two that do not divide M are left out: then all shapes with at most
/// N*M devices together can be packed onto the nodes. `position`: of the subcluster in cluster::subclusters.
/// Throws: input_error for less than one node or device per node, for more devices than an int counts, and for a negative
/// position. Source: HARP sec. 5.2.2.
[[nodiscard]] std::vector<submesh> submeshes(const subcluster& s, int position);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/submesh.ipp>
#endif
