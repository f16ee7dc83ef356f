// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// The link between two stages: that of their subclusters; inside a subcluster of several nodes its inter_node link, else its
/// intra_node link. None where no link joins the subclusters. Neighbouring stages may share a node; they are priced as if they
/// did not. O(links).
[[nodiscard]] inline std::optional<link> link_between(const cluster& c, const submesh& from, const submesh& to) {
  if (from.subcluster != to.subcluster) return c.between(from.subcluster, to.subcluster);
  const auto& s = subcluster_of(c, from);
  return s.nodes > 1 ? s.inter_node : s.intra_node;
}

/// Seconds to move `bytes` from one stage to the next; infinity where no link joins them. O(links).
[[nodiscard]] inline double stage_transfer_s(const cluster& c, const submesh& from, const submesh& to, double bytes) {
  const auto over = link_between(c, from, to);
  return over ? over->transfer_s(bytes) : std::numeric_limits<double>::infinity();
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
