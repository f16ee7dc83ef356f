// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/views.hpp>
#include <hetsched/plan/plan.hpp>

/// Ranges over results, found while they are walked through. What they show is not copied and has to live as long.
namespace hetsched::views {
inline namespace HETSCHED_VIEWS_KIND {

/// The stages of all pipelines, pipeline after pipeline.
[[nodiscard]] inline auto stages(const plan& p) { return p.pipelines | transform(&pipeline_plan::stages) | join; }
[[nodiscard]] inline auto stages(plan& p) { return p.pipelines | transform(&pipeline_plan::stages) | join; }
void stages(const plan&&) = delete;

/// The device groups of all stages of all pipelines, as in stages().
[[nodiscard]] inline auto device_groups(const plan& p) { return stages(p) | transform(&stage_plan::devices) | join; }
void device_groups(const plan&&) = delete;

/// A device of a subcluster, counted node by node.
struct numbered_device {
  int subcluster = 0;
  int device = 0;
  friend constexpr bool operator==(numbered_device, numbered_device) = default;
};

/// The devices of a group, in order.
[[nodiscard]] inline auto devices(const device_group& g) {
  return iota(g.first_device, g.first_device + g.mesh.device_count()) | transform([subcluster = g.mesh.subcluster](int device) {
           return numbered_device{subcluster, device};
         });
}
/// The devices of groups, such as those of a stage, group after group: a stage's ranks in order.
[[nodiscard]] inline auto devices(const std::vector<device_group>& groups) {
  return groups | transform([](const device_group& g) { return devices(g); }) | join;
}
void devices(const std::vector<device_group>&&) = delete;

/// The devices of all stages of all pipelines; those of several pipelines come as often.
[[nodiscard]] inline auto devices(const plan& p) {
  return device_groups(p) | transform([](const device_group& g) { return devices(g); }) | join;
}
void devices(const plan&&) = delete;

/// A stage of a pipeline and the boundary behind it.
struct bounded_stage {
  std::size_t number = 0;
  const stage_plan& stage;
  const boundary_plan* boundary = nullptr;  ///< none behind the last stage, and before evaluate
};

/// The stages of a pipeline in order, each with its number and boundary.
[[nodiscard]] inline auto stages_with_boundaries(const pipeline_plan& p) {
  return iota(std::size_t{0}, p.stages.size()) | transform([&p](std::size_t i) {
           return bounded_stage{i, p.stages[i], i < p.boundaries.size() ? &p.boundaries[i] : nullptr};
         });
}
void stages_with_boundaries(const pipeline_plan&&) = delete;

}  // namespace HETSCHED_VIEWS_KIND
}  // namespace hetsched::views
