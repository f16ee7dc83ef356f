// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.

#include <algorithm>
#include <vector>

#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched::detail {

/// Whether the costs have every stage of these pipelines.
[[nodiscard]] inline bool offered(const any_cost_model& costs, const std::vector<pipeline_plan>& lines) {
  for (const auto& line : lines)
    for (const auto& s : line.stages) {
      if (s.devices.size() != 1) return false;
      const auto known = costs.placements(s.devices.front().mesh);
      if (std::find(known.begin(), known.end(), s.where()) == known.end()) return false;
    }
  return true;
}

}  // namespace hetsched::detail
