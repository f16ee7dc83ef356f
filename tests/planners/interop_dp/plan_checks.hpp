// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/planners/interop_dp.hpp>

#include "brute_force.hpp"

namespace hetsched::test {

inline bool near(double a, double b, double tolerance = 1e-9) {
  return a == b || std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

/// Whether two stages lie on one node, by the nodes of their devices.
inline proximity share_node(const cluster& hardware, const stage_plan& a, const stage_plan& b) {
  std::vector<std::pair<int, int>> nodes;
  for (const auto* s : {&a, &b})
    for (const auto& g : s->devices)
      for (int d = g.first_device; d < g.first_device + g.mesh.device_count(); ++d)
        nodes.push_back({g.mesh.subcluster, d / subcluster_of(hardware, g.mesh).devices_per_node});
  const bool one = std::all_of(nodes.begin(), nodes.end(), [&](const auto& n) { return n == nodes.front(); });
  return one ? proximity::same_node : proximity::other_node;
}

/// Stages as if those of each subcluster lay side by side from the last one on, each over as many nodes as that takes.
inline std::vector<stage_plan> side_by_side(const cluster& hardware, std::vector<stage_plan> stages) {
  std::vector<int> used(hardware.subclusters.size());
  for (auto s = stages.rbegin(); s != stages.rend(); ++s) {
    auto& at = used[static_cast<std::size_t>(s->devices.front().mesh.subcluster)];
    s->devices.front().first_device = at;
    at += s->devices.front().mesh.device_count();
  }
  return stages;
}

/// The stages of a plan as the brute force judges them.
template <class Costs>
[[nodiscard]] bare_plan bare(const cluster& hardware, const Costs& costs, const pipeline_plan& p) {
  bare_plan b;
  for (std::size_t i = 0; i < p.stages.size(); ++i) {
    const auto& s = p.stages[i];
    const stage_cost c = cost_of::stage(costs, s.layers, s.where());
    b.compute.push_back(c.total_s());
    b.forward.push_back(c.forward_s);
    b.update.push_back(cost_of::update(costs, s.layers, s.where()));
    if (i + 1 < p.stages.size())
      b.transfer.push_back(cost_of::transfer(costs, s.layers.last - 1, s.where(), p.stages[i + 1].where(),
                                             share_node(hardware, s, p.stages[i + 1])));
    const room memory(static_cast<double>(s.memory_capacity_bytes), cost_of::overheads(costs, s.where()));
    b.caps.push_back(memory.cap(c, p.microbatches));
  }
  return b;
}

/// That stages lie on the devices they claim: on whole nodes or within one node, nothing used twice.
inline void check_devices(const cluster& hardware, const pipeline_plan& p, bool use_all) {
  std::vector<std::vector<int>> users(hardware.subclusters.size());
  for (std::size_t k = 0; k < users.size(); ++k)
    users[k].resize(static_cast<std::size_t>(hardware.subclusters[k].device_count()));
  for (const auto& s : p.stages) {
    REQUIRE(s.devices.size() == 1);
    const auto& [mesh, first_device] = s.devices.front();
    REQUIRE(mesh.subcluster >= 0);
    REQUIRE(mesh.subcluster < static_cast<int>(users.size()));
    const auto k = static_cast<std::size_t>(mesh.subcluster);
    const auto& sub = hardware.subclusters[k];
    REQUIRE(s.degrees.data * s.degrees.context * s.degrees.tensor == mesh.device_count());
    REQUIRE(first_device >= 0);
    REQUIRE(first_device + mesh.device_count() <= sub.device_count());
    if (mesh.nodes > 1 || mesh.devices_per_node == sub.devices_per_node) {
      REQUIRE(mesh.devices_per_node == sub.devices_per_node);
      REQUIRE(first_device % sub.devices_per_node == 0);
    } else {
      REQUIRE(first_device / sub.devices_per_node == (first_device + mesh.device_count() - 1) / sub.devices_per_node);
    }
    for (int d = 0; d < mesh.device_count(); ++d) ++users[k][static_cast<std::size_t>(first_device + d)];
  }
  for (const auto& u : users)
    for (const int times : u) REQUIRE((use_all ? times == 1 : times <= 1));
}

/// Whether a plan is as fast as the best one by brute force, which takes the fewest warm-ups of a rule and does not come back to
/// a subcluster: more of them, and pipelines that do, may be faster.
[[nodiscard]] inline bool as_fast(double seconds, double best) { return seconds <= best * (1 + 1e-9); }

/// The bound on latency and periods, as far as the plan lets it be told.
[[nodiscard]] inline double sum_bound(const plan& p) { return std::min(p.evidence->sum_bound, p.predicted.iteration_s); }

/// That a plan is what it says: complete, feasible, priced as the model prices it, with the warm-ups that its rule demands, and
/// predicted from the bare times.
template <class Costs>
void check_plan(const cluster& hardware, const Costs& costs, const planning_problem& problem, const interop_options& options,
                const plan& found) {
  REQUIRE(found.planner == "interop_dp");
  REQUIRE(found.objective == plan_objective::iteration);
  REQUIRE(found.pipelines.size() == 1);
  REQUIRE(found.gradient_sync.empty());
  const auto& p = found.pipelines.front();
  REQUIRE(p.schedule == schedule_plan{.name = std::string(schedule_name(options.warmup))});
  REQUIRE(p.microbatches == problem.microbatches);
  REQUIRE(p.microbatch_size == problem.microbatch_size);
  REQUIRE(!p.stages.empty());
  REQUIRE(p.boundaries.size() + 1 == p.stages.size());
  check_devices(hardware, p, problem.use_all_devices);

  int next = 0;
  for (std::size_t i = 0; i < p.stages.size(); ++i) {
    const auto& s = p.stages[i];
    REQUIRE(s.layers.first == next);
    REQUIRE(s.layers.size() >= 1);
    next = s.layers.last;
    const auto where = s.where();
    const auto allowed = cost_of::placements(costs, where.mesh);
    REQUIRE(std::count(allowed.begin(), allowed.end(), where) > 0);
    const stage_cost c = cost_of::stage(costs, s.layers, where);
    REQUIRE(s.cost == c);
    REQUIRE(s.update_s == cost_of::update(costs, s.layers, where));
    if (i + 1 < p.stages.size()) {
      const transfer_cost t =
          cost_of::transfer(costs, s.layers.last - 1, where, p.stages[i + 1].where(), share_node(hardware, s, p.stages[i + 1]));
      REQUIRE(p.boundaries[i].forward_s == t.forward_s);
      REQUIRE(p.boundaries[i].backward_s == t.backward_s);
      REQUIRE(p.boundaries[i].extra_bytes == t.extra_bytes);
      REQUIRE(p.boundaries[i].forward_occupied_s.value_or(t.forward_s) == t.forward_occupied_s.value_or(t.forward_s));
      REQUIRE(p.boundaries[i].backward_occupied_s.value_or(t.backward_s) == t.backward_occupied_s.value_or(t.backward_s));
    }
    REQUIRE(s.warmup >= 1);
    REQUIRE(s.warmup <= problem.microbatches);
    auto more = cost_of::overheads(costs, where);
    if (i > 0) more.buffer_bytes += p.boundaries[i - 1].extra_bytes;
    if (i + 1 < p.stages.size()) more.buffer_bytes += p.boundaries[i].extra_bytes;
    REQUIRE(s.memory_bytes == memory_of(c, more, s.warmup).total());
    if (more == memory_overheads{}) REQUIRE(s.memory_bytes == c.weight_bytes + s.warmup * c.activation_bytes + c.temporary_bytes);
    REQUIRE(s.memory_capacity_bytes == subcluster_of(hardware, where.mesh).device.memory_bytes);
    REQUIRE(s.memory_bytes <= s.memory_capacity_bytes);
  }
  REQUIRE(next == cost_of::layer_count(costs));

  auto imagined = p;
  imagined.stages = side_by_side(hardware, p.stages);
  const auto stages = bare(hardware, costs, imagined);
  const auto period = least_period_of(options.warmup, stages, problem.microbatches, options.epsilon);
  REQUIRE(period);
  REQUIRE(found.evidence);
  REQUIRE(found.evidence->objective_value == found.predicted.iteration_s);
  REQUIRE(found.evidence->objective_bound <= found.evidence->objective_value);
  if (problem.microbatches > 1) {
    // The period sits where counts change, so it may round to either side.
    bool as_ruled = false;
    for (const double about : {1.0, 1 - 1e-9, 1 + 1e-9}) {
      auto counts = counts_at(options.warmup, stages, *period * about, options.epsilon);
      for (int& n : counts) n = std::min(n, problem.microbatches);
      const auto own = warmups(p);
      as_ruled = as_ruled || counts == own;
      // More of them than the exact rule has, or fewer, where that is no slower.
      if (options.warmup == warmup_rule::exact)
        as_ruled = as_ruled ||
                   makespan(to_pipeline(p), own, p.microbatches) <= makespan(to_pipeline(p), counts, p.microbatches) * (1 + 1e-9);
    }
    REQUIRE(as_ruled);
  }
  // The prediction, from the bare times: every stage updates once its last backward is done.
  auto ends = stage_ends(to_pipeline(p), warmups(p), p.microbatches);
  for (const auto& shared : p.copy_sync) {
    auto &owner = ends[stage_with(p, shared.owner)], &copy = ends[stage_with(p, shared.layer)];
    owner = copy = std::max(owner, copy) + shared.seconds;
  }
  double iteration_s = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) iteration_s = std::max(iteration_s, ends[i] + p.stages[i].update_s);
  REQUIRE(near(found.predicted.iteration_s, iteration_s));
  REQUIRE(found.predicted.iteration_s >= found.predicted.lower_bound_s * (1 - 1e-12));
}

inline brute_force_options as_brute(const planning_problem& problem, const interop_options& o) {
  return {.rule = o.warmup, .microbatches = problem.microbatches, .epsilon = o.epsilon, .use_all = problem.use_all_devices};
}

/// Least update of a first stage: it holds the first layer, and updates when all else is done.
template <class Costs>
[[nodiscard]] double least_update(const cluster& hardware, const Costs& costs) {
  double least = never;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
    for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
      for (const placement& where : cost_of::placements(costs, mesh))
        least = std::min<double>(least, cost_of::update(costs, layer_range{0, 1}, where));
  return least;
}

/// What a search counted under a name.
inline std::int64_t work_of(const plan& p, std::string_view name) {
  REQUIRE(p.evidence);
  for (const auto& [what, count] : p.evidence->work)
    if (what == name) return count;
  FAIL("the search counted no " << name);
  return 0;
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
          const room memory(static_cast<double>(hardware.subclusters[k].device.memory_bytes), cost_of::overheads(costs, where));
          REQUIRE(!memory.holds(c, 1));
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
