// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>

#include <hetsched/planners/interop_dp/search.hpp>
#include <hetsched/planners/interop_dp/least_period.hpp>

namespace hetsched::detail {

[[nodiscard]] inline std::string in_gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g GiB", bytes / static_cast<double>(gib));
  return text;
}

/// Why no plan exists, given that none does: the layer that fits nowhere; else the plan that would exist if every device had the
/// same share more memory, the least that helps, and its tightest stage; else that links or the demand to use all devices stand
/// in the way.
template <class Table, class Algebra>
[[nodiscard]] std::string explain_shortage(const cluster& hardware, const interop_problem& problem, const Table& table,
                                           interop_search<Table, Algebra>& search, const Algebra& algebra, bool use_all) {
  for (int l = 0; l < problem.layers; ++l) {
    const interop_placement* best = nullptr;
    double least = infinity, needs = 0;
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      const double memory = table.memory(static_cast<int>(p), l, l + 1, 1);
      if (memory - placed.capacity < least) {
        least = memory - placed.capacity;
        needs = memory;
        best = &placed;
      }
    }
    if (least > 0)
      return "out of memory: " + describe(layer_range{l, l + 1}) + " alone needs " + in_gib(needs) + " of " +
             in_gib(best->capacity) + " at warm-up 1 on " + describe(hardware, best->where) +
             ", and no placement is short of less";
  }

  const auto plan_at = [&](double factor) {
    search.scale_capacity(factor);
    return search.solve(infinity, 0, infinity, 1);
  };
  double high = 2;
  auto found = plan_at(high);
  while (found.empty() && high < 1e9) found = plan_at(high *= 4);
  if (found.empty()) {
    search.scale_capacity(1);
    if (use_all)
      return "no pipeline uses every device: not for want of memory, but because the layers are too few, a link between "
             "subclusters is "
             "missing, or the shapes that the cost model allows do not add up; idle devices may be the way out";
    return "no pipeline exists whatever the memory: a link between subclusters is missing, or the cost model allows too few "
           "shapes";
  }
  for (double low = 1; high > low * 1.001;) {
    const double middle = (low + high) / 2;
    if (auto closer = plan_at(middle); !closer.empty()) {
      found = std::move(closer);
      high = middle;
    } else {
      low = middle;
    }
  }
  search.scale_capacity(1);

  const auto& stages = found.front().stages;
  const auto bare = search_pipeline(problem, table, stages);
  const auto warmups = warmups_for(algebra, bare, infinity);
  std::size_t worst = 0;
  double worst_share = 0;
  const auto memory = [&](std::size_t i) {
    return table.memory(stages[i].placement, stages[i].layers.first, stages[i].layers.last, warmups[i]);
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double share = memory(i) / problem.placements[static_cast<std::size_t>(stages[i].placement)].capacity;
    if (share > worst_share) {
      worst_share = share;
      worst = i;
    }
  }
  const auto& placed = problem.placements[static_cast<std::size_t>(stages[worst].placement)];
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", (high - 1) * 100);
  return "out of memory: every device would need " + std::string(percent) + " % more; the plan that comes closest has " +
         std::to_string(stages.size()) + " stages, and stage " + std::to_string(worst) + " of it, " +
         describe(stages[worst].layers) + " on " + describe(hardware, placed.where) + ", needs " + in_gib(memory(worst)) +
         " of " + in_gib(placed.capacity) + " at warm-up " + std::to_string(warmups[worst]);
}

}  // namespace hetsched::detail
