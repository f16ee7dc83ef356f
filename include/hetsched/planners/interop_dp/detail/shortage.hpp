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
#include <hetsched/core/tolerances.hpp>
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

/// What explain_shortage asks of the search that found no plan.
struct shortage_question {
  const cluster& hardware;
  const interop_problem& problem;
  const stage_prices& table;
  const std::vector<route_phase>& route;
  interop_search& search;
  const warmup_algebra& algebra;
  bool use_all = false;    ///< devices
  bool one_order = false;  ///< of subclusters was looked at, which the text says
  function_ref<bool()> go_on = {};
};

/// Says which layer fits nowhere; empty if each fits somewhere.
[[nodiscard]] inline std::string too_large_layer(const shortage_question& asked) {
  for (int l = 0; l < asked.problem.layers; ++l) {
    const interop_placement* best = nullptr;
    double least = infinity, needs = 0;
    for (std::size_t p = 0; p < asked.problem.placements.size(); ++p) {
      const auto& placed = asked.problem.placements[p];
      const double memory = asked.table.memory(static_cast<int>(p), l, l + 1, 1);
      if (memory - placed.capacity < least) {
        least = memory - placed.capacity;
        needs = memory;
        best = &placed;
      }
    }
    if (least > 0)
      return "out of memory: " + describe(layer_range{l, l + 1}) + " alone needs " + in_gib(needs) + " of " +
             room_text(asked.hardware, *best) + " at warm-up 1 on " + describe(asked.hardware, best->where) +
             ", and no placement is short of less";
  }
  return {};
}

/// The least factor on the memory of every device with which a plan was found, and that plan's stages; none if nothing helps.
struct closest_plan {
  double factor = 1;
  std::vector<interop_stage> stages = {};
};

[[nodiscard]] inline closest_plan plan_of_least_shortage(const shortage_question& asked) {
  auto& search = asked.search;
  const auto plan_at = [&](double factor) {
    search.scale_capacity(factor);
    if (!search.may_keep(infinity)) return std::vector<interop_stage>{};
    // Under exact warm-ups one microbatch in flight is enough, and then a beam finds a plan if there is one.
    if (asked.algebra.is_exact() && !asked.use_all) {
      auto scaled = asked.problem;
      for (auto& p : scaled.placements) p.capacity = p.capacity_at(factor);
      beam_search beam(scaled, asked.table, asked.route, asked.algebra, 1, asked.use_all);
      std::vector<int> all;
      for (std::size_t p = 0; p < scaled.placements.size(); ++p)
        if (!scaled.placements[p].dominated) all.push_back(static_cast<int>(p));
      auto met = beam.solve(infinity, all, std::vector<double>(as_size(scaled.layers + 1)), 1, 1, asked.go_on);
      if (!met.empty()) return std::move(met.front().stages);
    }
    auto met = search.solve(infinity, 0, infinity, 1);
    return met.empty() ? std::vector<interop_stage>{} : std::move(met.front().stages);
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
  while (!found.empty() && high > low * close) {
    const double middle = (low + high) / 2;
    if (auto closer = plan_at(middle); !closer.empty()) {
      found = std::move(closer);
      high = middle;
    } else {
      low = middle;
    }
  }
  search.scale_capacity(1);
  return {high, std::move(found)};
}

/// What the closest plan is short of, in words: its tightest stage.
[[nodiscard]] inline std::string tightest_stage(const shortage_question& asked, const closest_plan& closest) {
  const auto& stages = closest.stages;
  const auto bare = search_pipeline(asked.problem, asked.table, stages);
  const auto warmups = warmups_for(asked.algebra, bare, infinity);
  std::size_t worst = 0;
  double worst_share = 0;
  const auto memory = [&](std::size_t i) {
    return asked.table.memory(stages[i].placement, stages[i].layers.first, stages[i].layers.last, warmups[i]);
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& on = at(asked.problem.placements, stages[i].placement);
    const double share = on.with_rest(memory(i)) / on.memory;
    if (share > worst_share) {
      worst_share = share;
      worst = i;
    }
  }
  const auto& placed = at(asked.problem.placements, stages[worst].placement);
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", (closest.factor - 1) * 100);
  return "out of memory: every device would need " + std::string(percent) + " % more; the plan that comes closest has " +
         std::to_string(stages.size()) + " stages, and stage " + std::to_string(worst) + " of it, " +
         describe(stages[worst].layers) + " on " + describe(asked.hardware, placed.where) + ", needs " + in_gib(memory(worst)) +
         " of " + room_text(asked.hardware, placed) + " at warm-up " + std::to_string(warmups[worst]);
}

/// What else stands in the way, in words, where no memory helps.
[[nodiscard]] inline std::string other_obstacle(const shortage_question& asked) {
  const auto links = missing_links(asked.hardware);
  return std::string("no pipeline ") + (asked.use_all ? "uses every device" : "exists whatever the memory") + ": " +
         (links.empty() ? "" : "there is no link between " + links + ", or ") +
         (asked.use_all ? "the layers are too few, or the shapes that the cost model allows do not add up; idle devices may be "
                          "the way out"
                        : "the cost model allows too few shapes");
}

/// Why no plan exists, given that none does: the layer that fits nowhere; else the plan that would exist if every device had the
/// same share more memory, the least that helps, and its tightest stage; else that links or the demand to use all devices stand
/// in the way. Where go_on, asked now and then, returns false, it ends, and what it returns tells nothing.
[[nodiscard]] inline std::string explain_shortage(const shortage_question& asked) {
  if (auto why = too_large_layer(asked); !why.empty()) return why;
  const auto closest = plan_of_least_shortage(asked);
  const auto why = closest.stages.empty() ? other_obstacle(asked) : tightest_stage(asked, closest);
  return why + (asked.one_order ? " (in the order of subclusters that was looked at)" : "");
}

}  // namespace hetsched::detail
