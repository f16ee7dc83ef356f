// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/models/profile.hpp>

namespace hetsched {

HETSCHED_INLINE void profile_cost_model::add(std::size_t index) {
  const auto& e = profile_.entries[index];
  const std::string place = "/costs/" + std::to_string(index);
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw input_error(place + what);
  };
  const auto column = [&](const auto& values, const char* name) {
    require(values.size() == profile_.layers.size(), std::string("/") + name + ": has " + std::to_string(values.size()) +
                                                         " numbers, expected one for each of the " +
                                                         std::to_string(profile_.layers.size()) + " layers");
    for (std::size_t l = 0; l < values.size(); ++l)
      require(values[l] >= 0 && static_cast<double>(values[l]) <= std::numeric_limits<double>::max(),
              std::string("/") + name + "/" + std::to_string(l) + ": must be finite and not negative");
  };
  require(e.subcluster.empty() != e.device.empty(), ": needs either a subcluster or a device");
  require(e.nodes >= 1, "/nodes: must be at least 1");
  require(e.devices >= 1, "/devices: must be at least 1");
  column(e.forward_s, "forward_s");
  column(e.backward_s, "backward_s");
  column(e.weight_bytes, "weight_bytes");
  column(e.activation_bytes, "activation_bytes");
  const auto devices = checked_mul(e.nodes, e.devices);
  if (e.degrees) {
    require(e.degrees->data >= 1 && e.degrees->context >= 1 && e.degrees->tensor >= 1, "/degrees: must be at least 1");
    require(checked_mul(e.degrees->data, e.degrees->context, e.degrees->tensor) == devices,
            "/degrees: must multiply to the " + std::to_string(devices) + " devices of the shape");
  }
  require(e.subcluster.empty() || cluster_.find(e.subcluster), "/subcluster: the cluster has no subcluster " + e.subcluster);

  for (std::size_t s = 0; s < cluster_.subclusters.size(); ++s) {
    const auto& candidate = cluster_.subclusters[s];
    const bool named = e.device.empty() ? candidate.name == e.subcluster : same_device(candidate.device.name, e.device);
    if (!named || e.nodes > candidate.nodes || e.devices > candidate.devices_per_node) continue;
    const placement where{{static_cast<int>(s), e.nodes, e.devices},
                          e.degrees.value_or(hetsched::degrees{1, 1, static_cast<int>(devices)})};
    for (const auto& other : choices_[s])
      require(!(other.where == where),
              ": same shape and degrees on subcluster " + candidate.name + " as /costs/" + std::to_string(other.entry));
    choices_[s].push_back({where, index});
  }
}

}  // namespace hetsched
