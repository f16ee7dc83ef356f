// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/cluster/device_group.hpp>

namespace hetsched {

/// Devices for stages of these shapes, none twice. Larger shapes come first: as each shape's size is a multiple of the next
/// smaller one's (see submeshes), every stage then lies on whole nodes, or on consecutive devices of one node.
/// Requires: the shapes of each subcluster have no more devices than it.
template <std::same_as<submesh> Shape = submesh>
[[nodiscard]] std::vector<device_group> pack_devices(const std::vector<Shape>& shapes) {
  std::vector<std::size_t> largest_first(shapes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return shapes[a].device_count() > shapes[b].device_count(); });
  std::vector<int> used;
  std::vector<device_group> groups(shapes.size());
  for (const auto i : largest_first) {
    const auto k = static_cast<std::size_t>(shapes[i].subcluster);
    if (used.size() <= k) used.resize(k + 1);
    groups[i] = {shapes[i], used[k]};
    used[k] += shapes[i].device_count();
  }
  return groups;
}

}  // namespace hetsched
