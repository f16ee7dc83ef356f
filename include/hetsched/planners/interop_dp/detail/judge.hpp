// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/interop_dp/detail/least_period.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/fuller_warmups.hpp>
#include <hetsched/search/pack_devices.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// A plan at its least period.
struct met_plan {
  double objective_s = 0;  // latency, M - 1 periods, and what updates add
  double end_s = 0;        // the last of these
  std::vector<interop_stage> stages;
  std::vector<int> warmups;
};

/// What stages in a row are worth to a search of single pipelines, and the plan that they make.
class plan_judge {
 public:
  plan_judge(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
             warmup_algebra algebra, const planning_problem& asked)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        updates_(table.updates()),
        algebra_(algebra),
        asked_(asked) {}

  /// None if the stages do not fit in memory or a transfer is impossible.
  [[nodiscard]] std::optional<met_plan> judge(std::vector<interop_stage> stages, double within = infinity) const {
    const auto bare = search_pipeline(problem_, table_, stages);
    const auto caps = warmup_caps(problem_, table_, stages, asked_.microbatches);
    double latency = 0;
    for (int i = 0; i < bare.stages(); ++i) {
      if (at(caps, i) < 1) return std::nullopt;
      latency += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
    }
    if (!(latency < infinity)) return std::nullopt;
    const double own = std::min(within, least_period(algebra_, bare, caps, within));
    auto counts = warmups_for(algebra_, bare, own);
    for (std::size_t i = 0; i < caps.size(); ++i)
      if (counts[i] > caps[i]) return std::nullopt;
    const double end = end_of(stages, bare);
    return met_plan{latency + (asked_.microbatches - 1) * own + end, end, std::move(stages), std::move(counts)};
  }

  /// What updates add to an iteration: a stage ends before the first one by the backwards and gradients in between.
  [[nodiscard]] double end_of(const std::vector<interop_stage>& stages, const pipeline& bare) const {
    if (!updates_.any()) return 0;
    double before = 0, most = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& s = stages[i];
      most = std::max(most, updates_(s.placement, s.layers.first, s.layers.last) - before);
      const int k = static_cast<int>(i);
      before += bare.compute_s(k) - table_.forward(s.placement, s.layers.first, s.layers.last);
      if (k + 1 < bare.stages()) before += bare.slower_way_s(k);
    }
    return most;
  }

  /// The plan, as evaluate fills it in; none if it does not fit after all.
  [[nodiscard]] std::optional<plan> evaluated(const met_plan& candidate, std::string planner, double epsilon) const {
    plan p{.planner = std::move(planner),
           .pipelines = {{.microbatches = asked_.microbatches, .microbatch_size = asked_.microbatch_size}}};
    auto& line = p.pipelines.front();
    line.schedule.name = schedule_name(algebra_.rule());
    const auto where = [&](const interop_stage& s) -> const placement& { return at(problem_.placements, s.placement).where; };
    std::vector<submesh> shapes;
    for (const auto& s : candidate.stages) shapes.push_back(where(s).mesh);
    const auto groups = pack_devices(hardware_, shapes);
    for (std::size_t i = 0; i < candidate.stages.size(); ++i) {
      const auto& s = candidate.stages[i];
      line.stages.push_back({.layers = s.layers,
                             .devices = {groups[i]},
                             .degrees = where(s).degrees,
                             .recompute = where(s).recompute,
                             .zero = where(s).zero,
                             .warmup = std::min(candidate.warmups[i], asked_.microbatches)});
    }
    const evaluate_options how{.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic, .epsilon = epsilon};
    if (algebra_.is_exact()) return evaluate_filled(hardware_, costs_, std::move(p), how);
    auto judged = evaluate(hardware_, costs_, std::move(p), how);
    if (!judged || !judged->shortage.empty()) return std::nullopt;
    return std::move(judged->plan);
  }

 private:
  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  const update_table& updates_;
  warmup_algebra algebra_;
  const planning_problem& asked_;
};

}  // namespace hetsched::detail
