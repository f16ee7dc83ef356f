// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/planners/interop_dp/detail/beam.hpp>
#include <hetsched/planners/interop_dp/detail/least_period.hpp>
#include <hetsched/planners/interop_dp/detail/search.hpp>

namespace hetsched::detail {

/// "80 GiB", or what of it overheads leave: "72.1 GiB (80 GiB less runtime, transfer buffers and margin)".
[[nodiscard]] inline std::string room_text(const cluster& hardware, const interop_placement& p) {
  const auto whole = static_cast<double>(subcluster_of(hardware, p.where.mesh).device.memory_bytes);
  if (p.capacity >= whole) return in_gib(whole);
  return in_gib(p.capacity) + " (" + in_gib(whole) + " less runtime, transfer buffers and margin)";
}

/// Why no plan exists, given that none does: the layer that fits nowhere; else the plan that would exist if every device had the
/// same share more memory, the least that helps, and its tightest stage; else that links or the demand to use all devices stand
/// in the way. `one_order`: it says that other orders of the subclusters were not looked at. Where go_on, asked now and then,
/// returns false, it ends, and what it returns tells nothing.
[[nodiscard]] inline std::string explain_shortage(const cluster& hardware, const interop_problem& problem,
                                                  const stage_prices& table, const std::vector<route_phase>& route,
                                                  interop_search& search, const warmup_algebra& algebra, bool use_all,
                                                  bool one_order, function_ref<bool()> go_on = {}) {
  const char* const looked_at = one_order ? " (in the order of subclusters that was looked at)" : "";
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
             room_text(hardware, *best) + " at warm-up 1 on " + describe(hardware, best->where) +
             ", and no placement is short of less";
  }

  const auto plan_at = [&](double factor) {
    search.scale_capacity(factor);
    if (!search.may_keep(infinity)) return std::vector<std::vector<interop_stage>>{};
    // Under exact warm-ups one microbatch in flight is enough, and then a beam finds a plan if there is one.
    std::vector<std::vector<interop_stage>> plans;
    if (algebra.is_exact() && !use_all) {
      auto scaled = problem;
      for (auto& p : scaled.placements) p.capacity = p.capacity_at(factor);
      beam_search beam(scaled, table, route, algebra, 1, use_all);
      std::vector<int> all;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        if (!problem.placements[p].dominated) all.push_back(static_cast<int>(p));
      for (auto& s : beam.solve(infinity, all, std::vector<double>(as_size(problem.layers + 1)), 1, 1, go_on))
        plans.push_back(std::move(s.stages));
    }
    if (plans.empty())
      for (auto& s : search.solve(infinity, 0, infinity, 1)) plans.push_back(std::move(s.stages));
    return plans;
  };
  const auto may_help = [&](double factor) {
    search.scale_capacity(factor);
    return search.may_keep(infinity);
  };
  constexpr double most = 1e9, close = 1.001;
  double low = 1, high = 2;
  for (; high < most && !may_help(high); high *= 4) low = high;
  // Whether a factor may help is known much sooner than a plan.
  while (high > low * close) {
    const double middle = (low + high) / 2;
    (may_help(middle) ? high : low) = middle;
  }
  auto found = plan_at(high);
  for (double more = high - 1; found.empty() && high < most; more *= 4) {
    low = high;
    found = plan_at(high += more);
  }
  if (found.empty()) {
    search.scale_capacity(1);
    const auto links = missing_links(hardware);
    return std::string("no pipeline ") + (use_all ? "uses every device" : "exists whatever the memory") + ": " +
           (links.empty() ? "" : "there is no link between " + links + ", or ") +
           (use_all ? "the layers are too few, or the shapes that the cost model allows do not add up; idle devices may be the "
                      "way out"
                    : "the cost model allows too few shapes") +
           looked_at;
  }
  while (high > low * close) {
    const double middle = (low + high) / 2;
    if (auto closer = plan_at(middle); !closer.empty()) {
      found = std::move(closer);
      high = middle;
    } else {
      low = middle;
    }
  }
  search.scale_capacity(1);

  const auto& stages = found.front();
  const auto bare = search_pipeline(problem, table, stages);
  const auto warmups = warmups_for(algebra, bare, infinity);
  std::size_t worst = 0;
  double worst_share = 0;
  const auto memory = [&](std::size_t i) {
    return table.memory(stages[i].placement, stages[i].layers.first, stages[i].layers.last, warmups[i]);
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& on = at(problem.placements, stages[i].placement);
    const double share = on.with_rest(memory(i)) / on.memory;
    if (share > worst_share) {
      worst_share = share;
      worst = i;
    }
  }
  const auto& placed = at(problem.placements, stages[worst].placement);
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", (high - 1) * 100);
  return "out of memory: every device would need " + std::string(percent) + " % more; the plan that comes closest has " +
         std::to_string(stages.size()) + " stages, and stage " + std::to_string(worst) + " of it, " +
         describe(stages[worst].layers) + " on " + describe(hardware, placed.where) + ", needs " + in_gib(memory(worst)) +
         " of " + room_text(hardware, placed) + " at warm-up " + std::to_string(warmups[worst]) + looked_at;
}

}  // namespace hetsched::detail
