// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const cluster& c) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw input_error(what);
  };
  const auto usable = [](const link& l) {
    return l.latency_s >= 0 && l.latency_s <= std::numeric_limits<double>::max() && l.bandwidth > 0;
  };

  require(!c.subclusters.empty(), "the cluster has no subcluster");
  std::int64_t devices = 0;
  for (std::size_t i = 0; i < c.subclusters.size(); ++i) {
    const auto& s = c.subclusters[i];
    const std::string who = "subcluster " + s.name;
    require(!s.name.empty(), "a subcluster has no name");
    require(c.find(s.name) == static_cast<int>(i), who + ": the name is used twice");
    require(s.nodes >= 1 && s.devices_per_node >= 1, who + ": nodes and devices_per_node must be at least 1");
    devices = checked_add(devices, checked_mul(s.nodes, s.devices_per_node));
    require(devices <= std::numeric_limits<int>::max(), who + ": too many devices");
    require(s.device.memory_bytes > 0, who + ": device " + s.device.name + " has no memory");
    require(s.device.memory_bandwidth > 0, who + ": device " + s.device.name + " has no memory bandwidth");
    require(s.devices_per_node == 1 || usable(s.intra_node), who + ": intra_node needs bandwidth > 0 and latency >= 0");
    require(s.nodes == 1 || usable(s.inter_node), who + ": inter_node needs bandwidth > 0 and latency >= 0");
  }
  const int count = static_cast<int>(c.subclusters.size());
  for (std::size_t i = 0; i < c.links.size(); ++i) {
    const auto& l = c.links[i];
    require(l.a >= 0 && l.a < count && l.b >= 0 && l.b < count && l.a != l.b,
            "a link must join two different subclusters of the cluster");
    const std::string who = "link " + at(c.subclusters, l.a).name + " - " + at(c.subclusters, l.b).name;
    require(usable(l.link), who + ": needs bandwidth > 0 and latency >= 0");
    for (std::size_t j = 0; j < i; ++j) {
      const auto& other = c.links[j];
      require(!(other.a == l.a && other.b == l.b) && !(other.a == l.b && other.b == l.a), who + ": given twice");
    }
  }
}

}  // namespace hetsched
