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
template <shown<plan> Plan>
[[nodiscard]] auto stages(Plan& p) {
  return p.pipelines | transform(&pipeline_plan::stages) | join;
}

/// The device groups of all stages of all pipelines, as in stages().
template <shown<plan> Plan>
[[nodiscard]] auto device_groups(Plan& p) {
  return stages(p) | transform(&stage_plan::devices) | join;
}

/// A device of a subcluster, counted node by node.
struct numbered_device {
  int subcluster = 0;
  int device = 0;
  friend constexpr bool operator==(numbered_device, numbered_device) = default;
};

/// The devices of groups, such as those of a stage, group after group: a stage's ranks in order.
template <shown<std::vector<device_group>> Groups>
[[nodiscard]] auto devices(Groups& groups) {
  return groups | transform([](const device_group& g) {
           return iota(g.first_device, g.first_device + g.mesh.device_count()) |
                  transform([subcluster = g.mesh.subcluster](int device) {
                    return numbered_device{subcluster, device};
                  });
         }) |
         join;
}

/// The devices of all stages of all pipelines, as in stages().
template <shown<plan> Plan>
[[nodiscard]] auto devices(Plan& p) {
  return stages(p) | transform([](const stage_plan& s) { return devices(s.devices); }) | join;
}

/// A stage of a pipeline and the boundary after it.
struct bounded_stage {
  std::size_t number = 0;
  const stage_plan& stage;
  const boundary_plan* boundary = nullptr;  ///< null after the last stage, and before evaluate
};

/// The stages of a pipeline in order, each with its number and boundary.
template <shown<pipeline_plan> Pipeline>
[[nodiscard]] auto stages_with_boundaries(Pipeline& p) {
  return iota(std::size_t{0}, p.stages.size()) | transform([&p](std::size_t i) {
           return bounded_stage{i, p.stages[i], i < p.boundaries.size() ? &p.boundaries[i] : nullptr};
         });
}

}  // namespace HETSCHED_VIEWS_KIND
}  // namespace hetsched::views
