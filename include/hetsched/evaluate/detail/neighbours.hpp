// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/robust_test.cpp.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched::detail {

/// Moves so many layers from stage i + 1 to stage i; back, if below 0.
inline void move_layers(pipeline_plan& line, std::size_t i, int layers) {
  line.stages[i].layers.last += layers;
  line.stages[i + 1].layers.first += layers;
}

/// The devices of two groups as one, if these are alike, follow each other, and have a shape together that stages may take:
/// on one node, or of whole nodes.
[[nodiscard]] inline std::optional<device_group> joined_devices(const cluster& hardware, const device_group& a,
                                                                const device_group& b) {
  const auto& first = a.first_device < b.first_device ? a : b;
  const auto& second = a.first_device < b.first_device ? b : a;
  const int on_node = subcluster_of(hardware, a.mesh).devices_per_node, count = a.mesh.device_count();
  if (!(a.mesh == b.mesh) || second.first_device != first.first_device + count) return std::nullopt;
  auto both = first;
  if (a.mesh.devices_per_node == on_node)
    both.mesh.nodes *= 2;
  else if (a.mesh.nodes == 1 && first.first_device / on_node == (second.first_device + count - 1) / on_node)
    both.mesh.devices_per_node *= 2;
  else
    return std::nullopt;
  return both;
}

/// Calls next(plan) with every plan that differs from an evaluated one by the placement of a stage on its devices, or by two
/// stages in a row on alike devices that have become one, until it returns true; returns whether it has.
template <class Next>
[[nodiscard]] bool any_regrouped(const cluster& hardware, const costs_by_size& costs_for, const plan& p, Next&& next) {
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    if (line.schedule.actions) continue;
    const any_cost_model costs = costs_for(line.microbatch_size);
    const auto on = [&](std::size_t i, const device_group& where, layer_range layers, std::size_t stages) {
      for (const auto& q : costs.placements(where.mesh)) {
        if (q.recompute != line.stages[i].recompute || (stages == 1 && q == line.stages[i].where())) continue;
        auto other = p;
        other.gradient_sync.clear();
        other.pipelines[l].boundaries.clear();
        other.pipelines[l].copy_sync.clear();
        auto& changed = other.pipelines[l].stages;
        changed[i] = {.layers = layers,
                      .devices = {where},
                      .degrees = q.degrees,
                      .recompute = q.recompute,
                      .zero = q.zero,
                      .warmup = line.stages[i].warmup};
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i + 1),
                      changed.begin() + static_cast<std::ptrdiff_t>(i + stages));
        if (next(std::move(other))) return true;
      }
      return false;
    };
    const auto is_plain = [](const stage_plan& s) { return s.devices.size() == 1 && s.shares == axis_shares{}; };
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      const auto& s = line.stages[i];
      if (!is_plain(s)) continue;
      if (i + 1 < line.stages.size() && is_plain(line.stages[i + 1])) {
        const auto& after = line.stages[i + 1];
        const auto both = joined_devices(hardware, s.devices.front(), after.devices.front());
        if (both && on(i, *both, {s.layers.first, after.layers.last}, 2)) return true;
      }
      if (on(i, s.devices.front(), s.layers, 1)) return true;
    }
  }
  return false;
}

/// Calls next(plan) with every plan that differs from an evaluated one by the rule of its warm-ups, until it returns true;
/// returns whether it has.
template <class Next>
[[nodiscard]] bool any_rule(const plan& p, Next&& next) {
  using enum schedule_id;
  for (const auto id : {one_f_one_b, eager_1f1b, h1f1b, exact_1f1b, virtual_1f1b}) {
    auto other = p;
    bool warms = true;
    for (auto& line : other.pipelines) {
      warms = warms && has_warmups(line.schedule);
      line.schedule = {.name = std::string(name_of(id))};
      for (auto& s : line.stages) s.warmup = 0;
    }
    if (warms && next(std::move(other))) return true;
  }
  return false;
}

/// Calls next(plan) with every plan that differs from an evaluated one by a layer that has gone to a neighbouring stage or across
/// one, by up to two microbatches more or less in the warm-ups of the first stages, or by a microbatch that another pipeline
/// does, until it returns true; returns whether it has.
template <class Next>
[[nodiscard]] bool any_neighbour(const plan& p, Next&& next) {
  const auto by_warmups = [](const pipeline_plan& line) { return has_warmups(line.schedule); };
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    for (std::size_t i = 0; i + 1 < line.stages.size(); ++i)
      for (const int layers : {-1, 1})
        for (const int beyond : {0, -1, 1}) {
          if (beyond != 0 && i + 2 == line.stages.size()) continue;
          auto other = p;
          auto& changed = other.pipelines[l];
          move_layers(changed, i, layers);
          if (beyond != 0) move_layers(changed, i + 1, beyond);
          const auto has_layers = [](const auto& s) { return s.layers.size() > 0; };
          if (!std::all_of(changed.stages.begin(), changed.stages.end(), has_layers)) continue;
          if (next(std::move(other))) return true;
        }
    for (std::size_t i = 0; by_warmups(line) && i < line.stages.size(); ++i)
      for (const int more : {-1, 1, -2, 2}) {
        const int least = i + 1 < line.stages.size() ? line.stages[i + 1].warmup : 1;
        if (line.stages[i].warmup + more < least || line.stages[0].warmup + more > line.microbatches) continue;
        auto other = p;
        for (std::size_t k = 0; k <= i; ++k) other.pipelines[l].stages[k].warmup += more;
        if (next(std::move(other))) return true;
      }
    for (std::size_t k = 0; k < p.pipelines.size(); ++k) {
      const auto& to = p.pipelines[k];
      if (k == l || line.microbatches == 1 || line.schedule.actions || to.schedule.actions ||
          line.microbatch_size != to.microbatch_size)
        continue;
      auto other = p;
      ++other.pipelines[k].microbatches;
      const int left = --other.pipelines[l].microbatches;
      for (auto& s : other.pipelines[l].stages) s.warmup = std::min(s.warmup, left);
      if (next(std::move(other))) return true;
    }
  }
  return false;
}

}  // namespace hetsched::detail
