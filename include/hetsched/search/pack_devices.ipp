// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/search/pack_devices.hpp>

namespace hetsched {

namespace detail {

/// Stages of a pipeline that share a node if those of a subcluster lie side by side, last stage first: by stage, the first one of
/// its run.
[[nodiscard]] inline std::vector<std::size_t> node_runs(const cluster& hardware, const std::vector<submesh>& shapes) {
  std::vector<std::size_t> first(shapes.size());
  std::iota(first.begin(), first.end(), std::size_t{0});
  std::vector<int> used(hardware.subclusters.size());
  for (std::size_t i = shapes.size(); i-- > 0;) {
    const auto k = as_size(shapes[i].subcluster);
    const int per_node = hardware.subclusters[k].devices_per_node, taken = used[k] % per_node;
    used[k] += shapes[i].device_count();
    if (i + 1 == shapes.size() || shapes[i].nodes > 1 || shapes[i + 1].nodes > 1) continue;
    if (shapes[i + 1].subcluster == shapes[i].subcluster && taken >= shapes[i + 1].devices_per_node &&
        taken + shapes[i].devices_per_node <= per_node)
      first[i + 1] = i;
  }
  for (std::size_t i = 1; i < first.size(); ++i) first[i] = first[first[i]];
  return first;
}

}  // namespace detail

HETSCHED_INLINE std::vector<std::vector<device_group>> pack_devices(const cluster& hardware,
                                                                    const std::vector<std::vector<submesh>>& lines) {
  struct piece {
    std::size_t line = 0, first = 0, last = 0;  // stages
    int devices = 0;
  };
  std::vector<std::vector<device_group>> groups;
  for (const auto& shapes : lines) groups.emplace_back(shapes.size());
  const auto pack = [&](bool share_nodes) {
    std::vector<piece> pieces;
    for (std::size_t l = 0; l < lines.size(); ++l) {
      const auto& shapes = lines[l];
      const auto run_of = share_nodes ? detail::node_runs(hardware, shapes) : std::vector<std::size_t>{};
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        if (!share_nodes || run_of[i] == i) pieces.push_back({l, i, i, 0});
        pieces.back().last = i;
        pieces.back().devices += shapes[i].device_count();
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const piece& a, const piece& b) { return a.devices > b.devices; });
    std::vector<std::vector<int>> taken;  // by subcluster and node
    for (const auto& s : hardware.subclusters) taken.emplace_back(as_size(s.nodes));
    for (const auto& p : pieces) {
      const auto& shapes = lines[p.line];
      const auto k = as_size(shapes[p.first].subcluster);
      const int per_node = hardware.subclusters[k].devices_per_node;
      const int share = std::min(p.devices, per_node);  // of each node
      auto& nodes = taken[k];
      const auto found = std::find_if(nodes.begin(), nodes.end(), [&](int used) { return used + share <= per_node; });
      const auto node = found - nodes.begin();
      const auto wanted = (p.devices + per_node - 1) / per_node;
      // Pieces of several nodes come first: the nodes from the first free one on are free.
      if (nodes.end() - found < wanted) return false;
      int at = static_cast<int>(node) * per_node + (wanted == 1 ? *found : 0);
      for (auto n = found; n != found + wanted; ++n) *n += share;
      for (std::size_t i = p.first; i <= p.last; ++i) {
        groups[p.line][i] = {shapes[i], at};
        at += shapes[i].device_count();
      }
    }
    return true;
  };
  if (!pack(true)) pack(false);
  return groups;
}

HETSCHED_INLINE std::vector<device_group> pack_devices(const cluster& hardware, const std::vector<submesh>& shapes) {
  return pack_devices(hardware, std::vector<std::vector<submesh>>{shapes}).front();
}

}  // namespace hetsched
