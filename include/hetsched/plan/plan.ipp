// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

HETSCHED_INLINE double objective_of(const plan& p) {
  if (p.predicted.inference)
    return p.objective == plan_objective::latency ? p.predicted.inference->latency_s : 1 / p.predicted.inference->requests_per_s;
  return p.objective == plan_objective::cost ? p.predicted.cost_per_sample.value() : p.predicted.iteration_s;
}

HETSCHED_INLINE pipeline to_pipeline(const pipeline_plan& p) {
  pipeline bare;
  const auto any = [](const auto& parts, auto has) { return std::any_of(parts.begin(), parts.end(), has); };
  const bool weights = any(p.stages, [](const auto& s) { return s.cost.weight_backward_s > 0; });
  const bool bytes = any(p.stages, [](const auto& s) { return s.cost.activation_bytes > 0; });
  for (const auto& s : p.stages) {
    bare.forward_s.push_back(s.cost.forward_s);
    bare.backward_s.push_back(s.cost.backward_s);
    if (weights) bare.weight_backward_s.push_back(s.cost.weight_backward_s);
    if (bytes) bare.activation_bytes.push_back(static_cast<double>(s.cost.activation_bytes));
  }
  const bool one_way = any(p.boundaries, [](const auto& b) { return b.forward_s != b.backward_s; });
  const bool overlap = any(p.boundaries, [](const auto& b) { return b.forward_occupied_s || b.backward_occupied_s; });
  for (const auto& b : p.boundaries) {
    bare.transfer_s.push_back(b.forward_s);
    if (one_way) bare.gradient_transfer_s.push_back(b.backward_s);
    if (!overlap) continue;
    bare.transfer_occupied_s.push_back(b.forward_occupied_s.value_or(b.forward_s));
    bare.gradient_transfer_occupied_s.push_back(b.backward_occupied_s.value_or(b.backward_s));
  }
  return bare;
}

HETSCHED_INLINE std::vector<double> activation_rooms(const pipeline_plan& p) {
  std::vector<double> rooms;
  for (const auto& s : p.stages) {
    if (s.cost.weight_bytes == 0 || s.cost.activation_bytes == 0 || s.memory_capacity_bytes == 0) return {};
    rooms.push_back(activation_room(s));
  }
  return rooms;
}

HETSCHED_INLINE std::vector<bool> subcluster_boundaries(const pipeline_plan& p) {
  std::vector<bool> cross;
  for (std::size_t i = 0; i + 1 < p.stages.size(); ++i) {
    const int home = p.stages[i].devices.front().mesh.subcluster;
    const auto elsewhere = [&](const device_group& g) { return g.mesh.subcluster != home; };
    const auto &here = p.stages[i].devices, &there = p.stages[i + 1].devices;
    cross.push_back(std::any_of(here.begin(), here.end(), elsewhere) || std::any_of(there.begin(), there.end(), elsewhere));
  }
  return cross;
}

}  // namespace hetsched
