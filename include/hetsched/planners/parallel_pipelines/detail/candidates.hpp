// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>
#include <hetsched/planners/parallel_pipelines/detail/worth.hpp>
#include <hetsched/search/detail/uses_all.hpp>
#include <hetsched/search/fuller_warmups.hpp>
#include <hetsched/search/pack_devices.hpp>

namespace hetsched::detail {

/// Sets of pipelines as plans: evaluate says what each is worth, and the best one is kept.
class plan_candidates {
 public:
  using line = std::pair<const std::vector<interop_stage>*, int>;  // stages, microbatches

  plan_candidates(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
                  const end_table& ends, warmup_algebra algebra, const planning_problem& asked, warmup_rule warmup,
                  double epsilon)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        ends_(ends),
        algebra_(algebra),
        asked_(asked),
        warmup_(warmup),
        epsilon_(epsilon),
        worth_(hardware, asked) {}

  [[nodiscard]] const plan_worth& worth() const { return worth_; }
  [[nodiscard]] std::optional<plan>& best() { return best_; }
  /// The objective of the best plan; infinity if there is none.
  [[nodiscard]] double least() const { return best_ ? objective_of(*best_) : infinity; }
  /// Of the best plan; infinity if there is none.
  [[nodiscard]] double best_s() const { return best_ ? best_->predicted.iteration_s : infinity; }
  /// The shortest iteration of all plans, within the deadline or not.
  [[nodiscard]] double fastest_s() const { return fastest_s_; }
  [[nodiscard]] std::int64_t plans() const { return plans_; }

  /// Returns the iteration of a set of pipelines, and keeps its plan if it is the best so far; infinity if it does not fit.
  double consider(std::span<const line> lines) {
    auto p = assemble(lines);
    return p ? consider(*std::move(p)) : infinity;
  }
  double consider(plan p) {
    auto judged = judge(std::move(p));
    if (!judged) return infinity;
    const double seconds = judged->predicted.iteration_s;
    keep(*std::move(judged));
    return seconds;
  }

  /// Returns the iteration of a single pipeline of some of the microbatches; it is a plan if these are all of them.
  double consider_alone(const std::vector<interop_stage>& stages, int microbatches) {
    const line own[]{{&stages, microbatches}};
    if (microbatches == asked_.microbatches) return consider(own);
    auto p = assemble(own);
    if (!p) return infinity;
    const auto judged = judge(*std::move(p));
    return judged ? judged->predicted.iteration_s : infinity;
  }

  /// Keeps an evaluated plan that fits if it is the best so far.
  void keep(plan p) {
    fastest_s_ = std::min(fastest_s_, p.predicted.iteration_s);
    p.planner = "parallel_pipelines";
    p.objective = asked_.objective;
    if (p.predicted.iteration_s > worth_.deadline_s() || (asked_.use_all_devices && !uses_all(hardware_, p.pipelines))) return;
    if (objective_of(p) < least() || (objective_of(p) == least() && p.predicted.iteration_s < best_s())) best_ = std::move(p);
  }

  /// The stages of another planner's pipeline in terms of this problem; none if it does not know one of them.
  [[nodiscard]] std::optional<std::vector<interop_stage>> stages_of(const pipeline_plan& other) const {
    std::vector<interop_stage> stages;
    for (const auto& s : other.stages) {
      const auto where = s.where();
      const auto known = std::find_if(problem_.placements.begin(), problem_.placements.end(),
                                      [&](const interop_placement& p) { return p.where == where; });
      if (known == problem_.placements.end()) return std::nullopt;
      stages.push_back({static_cast<int>(known - problem_.placements.begin()), s.layers});
    }
    return stages;
  }

 private:
  // The plan of these pipelines, if each fits in memory and all into the cluster.
  [[nodiscard]] std::optional<plan> assemble(std::span<const line> lines) const {
    plan p;
    std::vector<std::vector<submesh>> shapes;
    for (const auto& [stages, microbatches] : lines) {
      const auto column = column_of(problem_, table_, ends_, algebra_, *stages, microbatches, false);
      if (!column) return std::nullopt;
      auto& own = p.pipelines.emplace_back();
      own.microbatches = microbatches;
      own.microbatch_size = asked_.microbatch_size;
      own.schedule.name = schedule_name(warmup_);
      shapes.emplace_back();
      for (std::size_t i = 0; i < stages->size(); ++i) {
        const auto& s = (*stages)[i];
        const auto& where = at(problem_.placements, s.placement).where;
        shapes.back().push_back(where.mesh);
        own.stages.push_back({.layers = s.layers,
                              .devices = {},
                              .degrees = where.degrees,
                              .recompute = where.recompute,
                              .zero = where.zero,
                              .warmup = std::min(column->warmups[i], microbatches)});
      }
    }
    const auto groups = pack_devices(hardware_, shapes);
    for (std::size_t l = 0; l < groups.size(); ++l)
      for (std::size_t i = 0; i < groups[l].size(); ++i) p.pipelines[l].stages[i].devices = {groups[l][i]};
    return p;
  }

  [[nodiscard]] std::optional<plan> judge(plan p) {
    ++plans_;
    const evaluate_options how{.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic, .epsilon = epsilon_};
    if (algebra_.is_exact()) return evaluate_filled(hardware_, costs_, std::move(p), how);
    auto judged = evaluate(hardware_, costs_, std::move(p), how);
    if (!judged || !judged->shortage.empty()) return std::nullopt;
    return std::move(judged->plan);
  }

  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  warmup_algebra algebra_;
  const planning_problem& asked_;
  warmup_rule warmup_;
  double epsilon_;
  plan_worth worth_;
  std::optional<plan> best_;
  double fastest_s_ = infinity;
  std::int64_t plans_ = 0;
};

}  // namespace hetsched::detail
