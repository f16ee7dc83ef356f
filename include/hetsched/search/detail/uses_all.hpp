// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <span>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched::detail {

/// Whether these pipelines leave no device of the cluster idle.
[[nodiscard]] inline bool uses_all(const cluster& hardware, std::span<const pipeline_plan> lines) {
  int used = 0;
  for (const auto& line : lines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) used += g.mesh.device_count();
  return used == hardware.device_count();
}

}  // namespace hetsched::detail
