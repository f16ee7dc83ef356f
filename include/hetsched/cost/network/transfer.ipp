// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <numeric>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer.hpp>

namespace hetsched {

HETSCHED_INLINE std::int64_t union_of_cuts(std::span<const placement> holders) {
  std::int64_t common = 1;
  for (const auto& h : holders) {
    detail::expect_count(h.degrees.tensor, "the tensor degree of a stage");
    common = std::lcm(common, std::int64_t{h.degrees.tensor});
    detail::expect_count(common, "the number of pieces of a parameter", 1, 1 << 24);
  }
  std::int64_t pieces = 0;
  for (std::int64_t i = 1; i <= common; ++i)
    pieces += std::any_of(holders.begin(), holders.end(), [&](const placement& h) { return i * h.degrees.tensor % common == 0; });
  return pieces;
}

namespace detail {

template <class Links>
[[nodiscard]] double gradient_reduction_s(const cluster& c, const Links& links, std::span<const placement> holders,
                                          double bytes) {
  expect_natural(bytes, "the bytes of gradients");
  for (const auto& h : holders) {
    expect_count(h.mesh.nodes, "the nodes of a stage");
    expect_count(h.mesh.devices_per_node, "the devices of a stage on a node", 1, INT_MAX / h.mesh.nodes);
  }
  if (holders.size() < 2) return 0;
  const double n = static_cast<double>(holders.size());
  const auto pieces = union_of_cuts(holders);
  double slowest_s = 0;
  for (std::size_t a = 0; a < holders.size(); ++a)
    for (std::size_t b = a + 1; b < holders.size(); ++b) {
      const auto &x = holders[a].mesh, &y = holders[b].mesh;
      const auto there = link_between(c, links, x, y), back = link_between(c, links, y, x);
      if (!there || !back) return infinity;
      const auto over = slower_of(*there, *back);
      const auto& s = subcluster_of(c, x);
      const bool joined = x.subcluster == y.subcluster;
      const auto ports_of = [&](const submesh& m) {
        if (!joined) return m.nodes;
        return s.nodes == 1 ? m.device_count() : m.nodes * s.ports(m.devices_per_node);
      };
      const int ports = std::min(ports_of(x), ports_of(y));
      const auto each = (pieces + ports - 1) / ports;
      slowest_s = std::max(slowest_s, static_cast<double>(each) * over.latency_s + bytes / n / ports / over.bandwidth);
    }
  return 2 * (n - 1) * slowest_s;
}

}  // namespace detail

HETSCHED_INLINE double gradient_reduction_s(const cluster& c, std::span<const placement> holders, double bytes) {
  return detail::gradient_reduction_s(c, c, holders, bytes);
}

HETSCHED_INLINE double gradient_reduction_s(const cluster& c, const link_index& links, std::span<const placement> holders,
                                            double bytes) {
  return detail::gradient_reduction_s(c, links, holders, bytes);
}

HETSCHED_INLINE double shared_reduction_s(const cluster& c, const placement& a, const placement& b, double bytes) {
  const placement holders[]{a, b};
  const auto m = static_cast<double>(replicas(a.degrees)), n = static_cast<double>(replicas(b.degrees));
  return gradient_reduction_s(c, holders, bytes * 2 * m * n / (m + n));
}

}  // namespace hetsched
