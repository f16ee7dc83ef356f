// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdint>

#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<submesh> submeshes(const subcluster& s, int position) {
  detail::expect_count(s.nodes, "nodes of subcluster " + s.name);
  detail::expect_count(s.devices_per_node, "devices_per_node of subcluster " + s.name, 1, INT_MAX / s.nodes);
  detail::expect_count(position, "the position of a subcluster", 0);
  std::vector<submesh> shapes;
  for (std::int64_t m = 1; m < s.devices_per_node; m *= 2)
    if (s.nodes == 1 || s.devices_per_node % m == 0) shapes.push_back({position, 1, static_cast<int>(m)});
  for (int n = 1; n <= s.nodes; ++n) shapes.push_back({position, n, s.devices_per_node});
  return shapes;
}

}  // namespace hetsched
