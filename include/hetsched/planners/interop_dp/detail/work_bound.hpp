// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/work_bound_test.cpp.

#include <algorithm>
#include <span>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// What the devices cost at the least that one microbatch passes, by the work alone: each layer costs what the cheapest placement
/// takes from its devices. `rents`: of a device for a second, by subcluster.
/// 0 where stages' times are not the sums of their layers'. O(placements * layers).
[[nodiscard]] inline double least_work(const interop_problem& problem, const stage_prices& table, std::span<const double> rents) {
  if (!table.additive()) return 0;
  double sum = 0;
  for (int l = 0; l < problem.layers; ++l) {
    double least = infinity;
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      least = std::min(least, at(rents, placed.subcluster) * placed.devices * table.time(static_cast<int>(p), l, l + 1));
    }
    sum += least;
  }
  return sum * (1 - tolerance::sums);
}

/// Seconds that no set of pipelines does M microbatches in, by the work alone: a device second of subcluster k pays r_k such that
/// one second of all devices pays 1. The rents are in proportion to speed. A dual of the linear program that shares out layers
/// among devices. O(placements * layers).
[[nodiscard]] inline double work_bound(const interop_problem& problem, const stage_prices& table, int microbatches) {
  std::vector<double> speed(problem.devices.size());
  for (std::size_t p = 0; p < problem.placements.size(); ++p) {
    const auto& placed = problem.placements[p];
    auto& own = at(speed, placed.subcluster);
    own = std::max(own, 1 / (table.time(static_cast<int>(p), 0, problem.layers) * placed.devices));
  }
  double all = 0;
  for (std::size_t k = 0; k < speed.size(); ++k) all += speed[k] * problem.devices[k];
  if (!(all > 0) || !(all < infinity)) return 0;
  for (auto& s : speed) s /= all;
  return microbatches * least_work(problem, table, speed);
}

}  // namespace hetsched::detail
