// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdint>
#include <optional>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/plan/validate.hpp>

namespace hetsched {

namespace detail {

/// Which stage of a plan has each device of a cluster.
class device_owners {
 public:
  explicit device_owners(const cluster& hardware) : hardware_(hardware) {
    for (const auto& s : hardware.subclusters) {
      expect_count(s.nodes, "nodes of subcluster " + s.name);
      expect_count(s.devices_per_node, "devices_per_node of subcluster " + s.name, 1, INT_MAX / s.nodes);
    }
    for (const auto& s : hardware.subclusters) owners_.emplace_back(as_size(s.device_count()));
  }

  /// Gives a stage its devices, and returns how many these are.
  /// Throws: input_error where the cluster does not have one, or another stage does.
  int give(const plan& p, std::size_t l, std::size_t i) {
    const auto refuse = [&](const std::string& what) { throw input_error(stage_name(p, l, i) + ": " + what); };
    int devices = 0;
    for (const auto& g : p.pipelines[l].stages[i].devices) {
      const int k = g.mesh.subcluster;
      if (k < 0 || k >= static_cast<int>(hardware_.subclusters.size())) refuse("it lies on a subcluster that is not there");
      const auto& on = at(hardware_.subclusters, k);
      if (g.mesh.nodes < 1 || g.mesh.devices_per_node < 1 || g.mesh.nodes > on.nodes ||
          g.mesh.devices_per_node > on.devices_per_node || g.first_device < 0 ||
          g.first_device > on.device_count() - g.mesh.device_count())
        refuse("its " + std::to_string(g.mesh.nodes) + "x" + std::to_string(g.mesh.devices_per_node) + " devices from " +
               std::to_string(g.first_device) + " on are not all in " + on.name + ", which has " + std::to_string(on.nodes) +
               "x" + std::to_string(on.devices_per_node));
      devices += g.mesh.device_count();
      for (int n = g.first_device; n < g.first_device + g.mesh.device_count(); ++n) {
        auto& by = at(at(owners_, k), n);
        if (by.stage >= 0)
          refuse("device " + std::to_string(n) + " of " + on.name + " belongs to " +
                 stage_name(p, as_size(by.pipeline), as_size(by.stage)) + " already");
        by = {static_cast<int>(l), static_cast<int>(i)};
      }
    }
    return devices;
  }

 private:
  struct owner {
    int pipeline = -1, stage = -1;
  };
  const cluster& hardware_;
  std::vector<std::vector<owner>> owners_;  // by subcluster and device
};

inline void validate_stage(const plan& p, std::size_t l, std::size_t i, int next, device_owners& owners) {
  const auto& s = p.pipelines[l].stages[i];
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw input_error(stage_name(p, l, i) + ": " + what);
  };
  require(s.layers.first == next && s.layers.last > next, "its layers begin at " + std::to_string(s.layers.first) +
                                                              ", expected at least one layer from " + std::to_string(next) +
                                                              " on");
  require(!s.devices.empty(), "it has no devices");
  const auto& d = s.degrees;
  require(d.data >= 1 && d.context >= 1 && d.tensor >= 1 && s.zero >= 0 && s.zero <= 3 && s.warmup >= 0,
          "degrees must be at least 1, the ZeRO stage 0 to 3, and a warm-up not negative");
  const auto& state = s.shares.state;
  require(state.empty() || state.size() == as_size(d.data),
          "it has " + std::to_string(state.size()) + " shares of its state for a data degree of " + std::to_string(d.data));
  require(d.expert >= 1 && d.data % d.expert == 0,
          "its expert degree of " + std::to_string(d.expert) + " does not divide its data degree of " + std::to_string(d.data));
  const int devices = owners.give(p, l, i);
  require(checked_mul(d.data, d.context, d.tensor) == devices,
          "data x context x tensor must be its " + std::to_string(devices) + " devices");
}

}  // namespace detail

HETSCHED_INLINE void validate(const cluster& hardware, const plan& p, int layer_count) {
  if (p.pipelines.empty()) throw input_error("a plan needs at least one pipeline");
  detail::device_owners owners(hardware);
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    const auto counts = [&](bool holds, const std::string& what) {
      if (!holds) throw input_error((p.pipelines.size() > 1 ? "pipeline " + std::to_string(l) + ": " : "") + what);
    };
    counts(!line.stages.empty(), "a pipeline needs at least one stage");
    counts(line.microbatches >= 1 && line.microbatch_size >= 1, "microbatches and microbatch_size must be at least 1");
    counts(line.boundaries.empty() || line.boundaries.size() == line.stages.size() - 1,
           "boundaries must be one fewer than the stages, or none");
    const auto is_part = [](std::optional<double> part_s, double whole_s) {
      return !part_s || (*part_s >= 0 && *part_s <= whole_s);
    };
    for (const auto& b : line.boundaries)
      counts(is_part(b.forward_occupied_s, b.forward_s) && is_part(b.backward_occupied_s, b.backward_s),
             "a transfer occupies its boundary for less than 0 s, or for longer than it takes");
    int next = 0;
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      detail::validate_stage(p, l, i, next, owners);
      next = line.stages[i].layers.last;
    }
    counts(next == layer_count,
           "its stages end at layer " + std::to_string(next) + ", the model at " + std::to_string(layer_count));
  }
}

}  // namespace hetsched
