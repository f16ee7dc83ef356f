// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/planners/interop_dp.hpp>

#include "brute_force.hpp"

namespace hetsched::test {

inline bool near(double a, double b, double tolerance = 1e-9) {
  return a == b || std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

/// The stages of a plan as the brute force judges them.
template <class Costs>
[[nodiscard]] bare_plan bare(const Costs& costs, const pipeline_plan& p) {
  bare_plan b;
  for (std::size_t i = 0; i < p.stages.size(); ++i) {
    const auto& s = p.stages[i];
    const stage_cost c = cost_of::stage(costs, s.layers, s.where);
    b.compute.push_back(c.total_s());
    if (i + 1 < p.stages.size())
      b.transfer.push_back(cost_of::transfer(costs, s.layers.last - 1, s.where, p.stages[i + 1].where));
    const double room = static_cast<double>(s.memory_capacity_bytes - c.weight_bytes);
    const bool all = room >= static_cast<double>(p.microbatches) * static_cast<double>(c.activation_bytes);
    b.caps.push_back(all ? std::numeric_limits<int>::max() : static_cast<int>(room / static_cast<double>(c.activation_bytes)));
  }
  return b;
}

/// That stages lie on the devices they claim: on whole nodes or within one node, nothing used twice, in one run per subcluster.
inline void check_devices(const cluster& hardware, const pipeline_plan& p, bool use_all) {
  std::vector<std::vector<int>> users(hardware.subclusters.size());
  for (std::size_t k = 0; k < users.size(); ++k)
    users[k].resize(static_cast<std::size_t>(hardware.subclusters[k].device_count()));
  std::vector<int> visited;
  for (const auto& s : p.stages) {
    const auto& mesh = s.where.mesh;
    REQUIRE(mesh.subcluster >= 0);
    REQUIRE(mesh.subcluster < static_cast<int>(users.size()));
    const auto k = static_cast<std::size_t>(mesh.subcluster);
    const auto& sub = hardware.subclusters[k];
    REQUIRE(s.where.degrees.data * s.where.degrees.context * s.where.degrees.tensor == mesh.device_count());
    REQUIRE(s.first_device >= 0);
    REQUIRE(s.first_device + mesh.device_count() <= sub.device_count());
    if (mesh.nodes > 1 || mesh.devices_per_node == sub.devices_per_node) {
      REQUIRE(mesh.devices_per_node == sub.devices_per_node);
      REQUIRE(s.first_device % sub.devices_per_node == 0);
    } else {
      REQUIRE(s.first_device / sub.devices_per_node == (s.first_device + mesh.device_count() - 1) / sub.devices_per_node);
    }
    for (int d = 0; d < mesh.device_count(); ++d) ++users[k][static_cast<std::size_t>(s.first_device + d)];
    if (visited.empty() || visited.back() != mesh.subcluster) visited.push_back(mesh.subcluster);
  }
  for (const auto& u : users)
    for (const int times : u) REQUIRE((use_all ? times == 1 : times <= 1));
  std::sort(visited.begin(), visited.end());
  REQUIRE(std::adjacent_find(visited.begin(), visited.end()) == visited.end());
}

/// That a plan is what it says: complete, feasible, priced as the model prices it, with the warm-ups that its rule demands and
/// the objective that these give.
template <class Costs>
void check_plan(const cluster& hardware, const Costs& costs, const interop_options& options, const plan& found) {
  REQUIRE(found.planner == "interop_dp");
  REQUIRE(found.schedule == schedule_name(options.warmup));
  REQUIRE(found.microbatches == options.microbatches);
  REQUIRE(found.pipelines.size() == 1);
  const auto& p = found.pipelines.front();
  REQUIRE(p.microbatches == options.microbatches);
  REQUIRE(p.microbatch_size == options.microbatch_size);
  REQUIRE(!p.stages.empty());
  check_devices(hardware, p, options.use_all_devices);

  int next = 0;
  for (std::size_t i = 0; i < p.stages.size(); ++i) {
    const auto& s = p.stages[i];
    REQUIRE(s.layers.first == next);
    REQUIRE(s.layers.size() >= 1);
    next = s.layers.last;
    const auto allowed = cost_of::placements(costs, s.where.mesh);
    REQUIRE(std::count(allowed.begin(), allowed.end(), s.where) > 0);
    const stage_cost c = cost_of::stage(costs, s.layers, s.where);
    REQUIRE(s.forward_s == c.forward_s);
    REQUIRE(s.backward_s == c.backward_s);
    REQUIRE(s.update_s == cost_of::update(costs, s.layers, s.where));
    const bool last = i + 1 == p.stages.size();
    REQUIRE(s.transfer_s == (last ? 0 : cost_of::transfer(costs, s.layers.last - 1, s.where, p.stages[i + 1].where)));
    REQUIRE(s.warmup >= 1);
    REQUIRE(s.warmup <= options.microbatches);
    REQUIRE(s.memory_bytes == c.weight_bytes + s.warmup * c.activation_bytes);
    REQUIRE(s.memory_capacity_bytes ==
            hardware.subclusters[static_cast<std::size_t>(s.where.mesh.subcluster)].device.memory_bytes);
    REQUIRE(s.memory_bytes <= s.memory_capacity_bytes);
  }
  REQUIRE(next == cost_of::layer_count(costs));

  const auto stages = bare(costs, p);
  const auto period = least_period_of(options.warmup, stages, options.microbatches, options.epsilon);
  REQUIRE(period);
  REQUIRE(near(found.evidence.objective_s, stages.latency() + (options.microbatches - 1) * *period));
  if (options.microbatches > 1) {
    // The period sits where counts change, so it may round to either side.
    bool as_ruled = false;
    for (const double about : {1.0, 1 - 1e-9, 1 + 1e-9}) {
      auto counts = counts_at(options.warmup, stages, *period * about, options.epsilon);
      for (int& n : counts) n = std::min(n, options.microbatches);
      as_ruled = as_ruled || counts == warmups(p);
    }
    REQUIRE(as_ruled);
  }
  REQUIRE(near(found.predicted.iteration_s, iteration_s(p)));
  REQUIRE(found.predicted.iteration_s >= found.predicted.lower_bound_s * (1 - 1e-12));
}

inline brute_force_options as_brute(const interop_options& o) {
  return {.rule = o.warmup, .microbatches = o.microbatches, .epsilon = o.epsilon, .use_all = o.use_all_devices};
}

/// The claims of a refusal that can be tried.
template <class Costs>
void check_reason(const cluster& hardware, const Costs& costs, brute_force_options brute, const std::string& reason) {
  CAPTURE(reason);
  REQUIRE(!reason.empty());
  int layer = 0;
  double percent = 0;
  if (std::sscanf(reason.c_str(), "out of memory: layer %d alone", &layer) == 1) {
    REQUIRE(layer >= 0);
    REQUIRE(layer < cost_of::layer_count(costs));
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
        for (const placement& where : cost_of::placements(costs, mesh)) {
          const stage_cost c = cost_of::stage(costs, {layer, layer + 1}, where);
          REQUIRE(c.weight_bytes + c.activation_bytes > hardware.subclusters[k].device.memory_bytes);
        }
  } else if (std::sscanf(reason.c_str(), "out of memory: every device would need %lf %% more", &percent) == 1) {
    brute.memory_factor = (1 + percent / 100) * 1.002 + 0.001;
    REQUIRE(brute_force_objective(hardware, costs, brute) < never);
    brute.memory_factor = std::max(1.0, (1 + percent / 100) * 0.998 - 0.002);
    REQUIRE(brute_force_objective(hardware, costs, brute) == never);
  } else {
    brute.memory_factor = never;
    REQUIRE(brute_force_objective(hardware, costs, brute) == never);
  }
}

}  // namespace hetsched::test
