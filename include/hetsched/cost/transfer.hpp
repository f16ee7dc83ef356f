// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// Seconds to move `bytes` from one stage to the next: over the link between their subclusters, inside a subcluster of several
/// nodes over its inter_node link, else over its intra_node link. Infinity where no link joins the subclusters.
/// Neighbouring stages may share a node; they are priced as if they did not. O(links).
[[nodiscard]] inline double stage_transfer_s(const cluster& c, const submesh& from, const submesh& to, double bytes) {
  if (from.subcluster != to.subcluster) {
    const auto cross = c.between(from.subcluster, to.subcluster);
    return cross ? cross->transfer_s(bytes) : std::numeric_limits<double>::infinity();
  }
  const auto& s = subcluster_of(c, from);
  return (s.nodes > 1 ? s.inter_node : s.intra_node).transfer_s(bytes);
}

}  // namespace hetsched
