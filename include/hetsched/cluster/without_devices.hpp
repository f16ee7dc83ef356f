// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

/// Devices of a subcluster that are lost.
struct lost_devices {
  int subcluster = 0;
  int count = 1;
};

/// A cluster without some devices: whole nodes, and what is left of one as a subcluster of its own, which the others reach as
/// before. Returns: no subclusters if all are lost.
/// Throws: input_error unless the subcluster is there and has as many, in nodes of at least one.
[[nodiscard]] inline cluster without_devices(cluster c, const lost_devices& lost) {
  detail::expect_count(lost.subcluster, "the subcluster of lost devices", 0, static_cast<std::int64_t>(c.subclusters.size()) - 1);
  const auto at = as_size(lost.subcluster);
  auto& s = c.subclusters[at];
  detail::expect_count(s.nodes, "nodes of subcluster " + s.name);
  detail::expect_count(s.devices_per_node, "devices_per_node of subcluster " + s.name, 1, INT_MAX / s.nodes);
  detail::expect_count(lost.count, "the number of lost devices", 0, s.device_count());
  const int left = s.device_count() - lost.count, whole = left / s.devices_per_node, rest = left % s.devices_per_node;
  if (left == 0) {
    c.subclusters.erase(c.subclusters.begin() + lost.subcluster);
    std::erase_if(c.links, [&](const cross_link& l) { return l.a == lost.subcluster || l.b == lost.subcluster; });
    for (auto& l : c.links)
      for (int* end : {&l.a, &l.b}) *end -= *end > lost.subcluster;
    return c;
  }
  if (whole == 0 || rest == 0) {
    s.nodes = std::max(1, whole);
    if (whole == 0) s.devices_per_node = rest;
    return c;
  }
  s.nodes = whole;
  auto part = s;
  part.nodes = 1;
  part.devices_per_node = rest;
  const auto taken = [&](const std::string& name) { return c.find(name).has_value(); };
  part.name += " rest";
  while (taken(part.name)) part.name += "'";
  const int number = static_cast<int>(c.subclusters.size());
  std::vector<cross_link> more{{lost.subcluster, number, s.between_nodes(rest), s.inter_node_path}};
  for (const auto& l : c.links)
    if (l.a == lost.subcluster || l.b == lost.subcluster)
      more.push_back(
          {l.a == lost.subcluster ? number : l.a, l.b == lost.subcluster ? number : l.b, l.link, l.path, l.bandwidth_back});
  c.subclusters.push_back(std::move(part));
  c.links.insert(c.links.end(), more.begin(), more.end());
  return c;
}

}  // namespace hetsched
