// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
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

/// Pieces into which even cuts over the tensor ranks of several stages cut a parameter together.
[[nodiscard]] inline std::int64_t union_of_cuts(std::span<const placement> holders) {
  std::int64_t common = 1;
  for (const auto& h : holders) common = std::lcm(common, std::int64_t{h.degrees.tensor});
  std::int64_t pieces = 0;
  for (std::int64_t i = 1; i <= common; ++i)
    pieces += std::any_of(holders.begin(), holders.end(), [&](const placement& h) { return i * h.degrees.tensor % common == 0; });
  return pieces;
}

/// Seconds to add up `bytes` of gradients that each of several stages holds, cut over its tensor ranks as it likes: a ring for
/// every piece of the union of their cuts. Every hop is as slow as the slowest link between any two of the stages, where the
/// ports of their nodes (on one node: of their devices) work at once, each on one piece at a time; infinity where two have no
/// link. O(holders^2 * links + pieces * holders). Source: HexiScale sec. 3.2 (asymmetric gradients).
[[nodiscard]] inline double gradient_reduction_s(const cluster& c, std::span<const placement> holders, double bytes) {
  if (holders.size() < 2) return 0;
  const double n = static_cast<double>(holders.size());
  const auto pieces = union_of_cuts(holders);
  double slowest_s = 0;
  for (std::size_t a = 0; a < holders.size(); ++a)
    for (std::size_t b = a + 1; b < holders.size(); ++b) {
      const auto &x = holders[a].mesh, &y = holders[b].mesh;
      const auto over = link_between(c, x, y);
      if (!over) return std::numeric_limits<double>::infinity();
      const bool on_one_node = x.subcluster == y.subcluster && subcluster_of(c, x).nodes == 1;
      const int ports = on_one_node ? std::min(x.device_count(), y.device_count()) : std::min(x.nodes, y.nodes);
      const auto each = (pieces + ports - 1) / ports;
      slowest_s = std::max(slowest_s, static_cast<double>(each) * over->latency_s + bytes / n / ports / over->bandwidth);
    }
  return 2 * (n - 1) * slowest_s;
}

}  // namespace hetsched
