// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<submesh> submeshes(const subcluster& s, int position) {
  std::vector<submesh> shapes;
  for (int m = 1; m < s.devices_per_node; m *= 2)
    if (s.nodes == 1 || s.devices_per_node % m == 0) shapes.push_back({position, 1, m});
  for (int n = 1; n <= s.nodes; ++n) shapes.push_back({position, n, s.devices_per_node});
  return shapes;
}

}  // namespace hetsched
