// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void validate_network(const cluster& c, bool told) {
  const auto usable = [&](const link& l) {
    return l.latency_s >= 0 && l.latency_s <= std::numeric_limits<double>::max() &&
           (l.bandwidth > 0 || (!told && l.bandwidth == 0));
  };
  std::int64_t devices = 0;
  for (const auto& s : c.subclusters) {
    const auto require = [&](bool holds, const char* what) {
      if (!holds) throw input_error("subcluster " + s.name + what);
    };
    require(s.nodes >= 1 && s.devices_per_node >= 1, ": nodes and devices_per_node must be at least 1");
    devices = checked_add(devices, checked_mul(s.nodes, s.devices_per_node));
    require(devices <= std::numeric_limits<int>::max(), ": too many devices");
    require(s.devices_per_node == 1 || usable(s.intra_node), ": intra_node needs bandwidth > 0 and latency >= 0");
    require(s.nics >= 1, ": nics must be at least 1");
    require(
        !s.price_per_node_hour || (*s.price_per_node_hour >= 0 && *s.price_per_node_hour <= std::numeric_limits<double>::max()),
        ": price_per_node_hour must not be negative");
    require(s.nodes == 1 || usable(s.inter_node), ": inter_node needs bandwidth > 0 and latency >= 0");
  }
  const int count = static_cast<int>(c.subclusters.size());
  std::set<std::pair<int, int>> joined;
  for (const auto& l : c.links) {
    if (!(l.a >= 0 && l.a < count && l.b >= 0 && l.b < count && l.a != l.b))
      throw input_error("a link must join two different subclusters of the cluster");
    const auto require = [&](bool holds, const char* what) {
      if (!holds) throw input_error("link " + at(c.subclusters, l.a).name + " - " + at(c.subclusters, l.b).name + what);
    };
    require(usable(l.link) && usable(l.back()), ": needs bandwidth > 0 and latency >= 0");
    require(joined.insert(std::minmax({l.a, l.b})).second, ": given twice");
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void validate(const cluster& c) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw input_error(what);
  };
  require(!c.subclusters.empty(), "the cluster has no subcluster");
  for (std::size_t i = 0; i < c.subclusters.size(); ++i) {
    const auto& s = c.subclusters[i];
    const std::string who = "subcluster " + s.name;
    require(!s.name.empty(), "a subcluster has no name");
    require(c.find(s.name) == static_cast<int>(i), who + ": the name is used twice");
    require(s.device.memory_bytes > 0, who + ": device " + s.device.name + " has no memory");
    require(s.device.memory_bandwidth > 0, who + ": device " + s.device.name + " has no memory bandwidth");
  }
  detail::validate_network(c);
}

}  // namespace hetsched
