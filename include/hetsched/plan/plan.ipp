// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

HETSCHED_INLINE void detail::expect_training(plan_objective objective) {
  if (is_inference(objective))
    throw input_error("a plan with the objective " + std::string(name_of(objective)) + " is for inference: it has no iteration");
}

HETSCHED_INLINE double objective_of(const plan& p) {
  detail::expect_training(p.objective);
  if (p.objective != plan_objective::cost) return p.predicted.iteration_s;
  if (!p.predicted.cost_per_sample) throw input_error("a plan has no cost_per_sample: some of its devices have no price");
  return *p.predicted.cost_per_sample;
}

HETSCHED_INLINE int microbatch_count(const plan& p) {
  int count = 0;
  for (const auto& line : p.pipelines) {
    detail::expect_count(line.microbatches, "microbatches", 1, INT_MAX - count);
    count += line.microbatches;
  }
  return count;
}

HETSCHED_INLINE std::int64_t sample_count(const plan& p) {
  std::int64_t count = 0;
  for (const auto& line : p.pipelines) {
    detail::expect_count(line.microbatches, "microbatches");
    detail::expect_count(line.microbatch_size, "microbatch_size");
    count = checked_add(count, std::int64_t{line.microbatches} * line.microbatch_size);
  }
  return count;
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

HETSCHED_INLINE std::size_t stage_with(const pipeline_plan& p, int layer) {
  for (std::size_t i = 0; i < p.stages.size(); ++i)
    if (layer >= p.stages[i].layers.first && layer < p.stages[i].layers.last) return i;
  throw input_error("no stage has layer " + std::to_string(layer));
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
    for (const auto* s : {&p.stages[i], &p.stages[i + 1]})
      if (s->devices.empty()) throw input_error("stage " + std::to_string(s - p.stages.data()) + " has no devices");
    const int home = p.stages[i].devices.front().mesh.subcluster;
    const auto elsewhere = [&](const device_group& g) { return g.mesh.subcluster != home; };
    const auto &here = p.stages[i].devices, &there = p.stages[i + 1].devices;
    cross.push_back(std::any_of(here.begin(), here.end(), elsewhere) || std::any_of(there.begin(), there.end(), elsewhere));
  }
  return cross;
}

}  // namespace hetsched
