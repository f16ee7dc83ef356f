// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/baselines/options.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/interop_dp/detail/stage_rows.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/schedule_id.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// What the baselines share: the tables of stages, and the best plan that evaluate has seen.
class baseline_judge {
 public:
  baseline_judge(price_book& book, const interop_problem& placed, const stage_prices& table, const planning_problem& asked,
                 const baseline_options& options, std::string planner)
      : book_(book),
        placed_(placed),
        table_(table),
        asked_(asked),
        options_(options),
        planner_(std::move(planner)),
        schedules_{schedule_named(options.schedule)} {
    for (std::size_t p = 0; p < placed.placements.size(); ++p) {
      const auto& mesh = placed.placements[p].where.mesh;
      by_mesh_[{mesh.subcluster, mesh.nodes, mesh.devices_per_node}].push_back(static_cast<int>(p));
    }
    using enum schedule_id;
    const auto own = schedules_.front();
    if (own == exact_1f1b || own == h1f1b || own == eager_1f1b) schedules_.push_back(one_f_one_b);
  }

  [[nodiscard]] const cluster& hardware() const { return book_.hardware(); }
  [[nodiscard]] const interop_problem& placed() const { return placed_; }
  [[nodiscard]] const stage_prices& table() const { return table_; }
  [[nodiscard]] const planning_problem& asked() const { return asked_; }

  /// Placements on a submesh, as positions in placed().placements; valid as long as this.
  [[nodiscard]] const std::vector<int>& placements_on(const submesh& mesh) const {
    static const std::vector<int> none;
    const auto found = by_mesh_.find({mesh.subcluster, mesh.nodes, mesh.devices_per_node});
    return found == by_mesh_.end() ? none : found->second;
  }

  /// Whether a stage holds so many microbatches whatever the transfers beside it.
  [[nodiscard]] bool fits(int p, layer_range layers, int in_flight) const {
    return table_.memory(p, layers.first, layers.last, in_flight) <= at(placed_.placements, p).capacity;
  }
  /// Whether it may hold any at all.
  [[nodiscard]] bool may_fit(int p, layer_range layers) const {
    return table_.memory(p, layers.first, layers.last, 1) <= at(placed_.placements, p).room;
  }

  /// Whether no plan is the best, whatever the schedule, that has a stage of so many seconds behind others that take `before_s`.
  [[nodiscard]] bool hopeless(double before_s, double seconds, int microbatches) const {
    return (before_s + microbatches * seconds) * (1 - tolerance::sums) >= limit_s();
  }
  [[nodiscard]] bool found() const { return best_.has_value(); }
  /// What plans have to be faster than.
  [[nodiscard]] double limit_s() const { return best_ ? std::min(best_->predicted.iteration_s, asked_.beat) : asked_.beat; }
  [[nodiscard]] bool go_on() { return !(stopped_ = stopped_ || !asked_.may_go_on()); }

  /// The stage of a plan.
  [[nodiscard]] stage_plan stage(int p, const device_group& devices, layer_range layers) const {
    const auto& where = at(placed_.placements, p).where;
    return {.layers = layers, .devices = {devices}, .degrees = where.degrees, .recompute = where.recompute, .zero = where.zero};
  }

  /// Looks at a plan of these pipelines, which need stages and microbatches only.
  void consider(std::vector<pipeline_plan> lines) {
    plan p{.planner = planner_, .pipelines = std::move(lines)};
    for (const auto schedule : schedules_) {
      for (auto& line : p.pipelines) {
        line.microbatch_size = asked_.microbatch_size;
        line.schedule.name = name_of(schedule);
      }
      auto judged = evaluate(hardware(), book_.costs(), p, judging());
      ++plans_;
      if (options_.one_order && judged && judged->shortage.empty() && give_one_order(judged->plan)) {
        ++plans_;
        judged = evaluate(hardware(), book_.costs(), std::move(judged->plan), judging());
      }
      if (!judged) {
        if (!why_) why_ = judged.why_not();
        break;
      }
      if (judged->shortage.empty()) {
        if (judged->plan.predicted.iteration_s < limit_s()) best_ = std::move(judged->plan);
        break;
      }
      if (!why_) why_ = refusal{refusal::kind::infeasible, judged->shortage};
    }
    const double best_s = best_ ? best_->predicted.iteration_s : infinity;
    if (asked_.progress && !asked_.progress({plans_, "plans", best_s, 0}) && best_) stopped_ = true;
  }

  [[nodiscard]] outcome<plan> result() {
    if (best_) {
      best_->evidence = {.objective_value = best_->predicted.iteration_s, .work = {{"plans", plans_}}};
      return *std::move(best_);
    }
    if (stopped_) return stopped_early();
    if (asked_.beat < infinity)
      return refusal{refusal::kind::infeasible, "no plan has an iteration below that of one that is known"};
    if (auto why = why_no_pipeline(hardware(), book_.costs(), placed_, table_, asked_)) return *std::move(why);
    if (why_) return *std::move(why_);
    return refusal{refusal::kind::infeasible, planner_ + " finds no way to share out all " +
                                                  std::to_string(hardware().device_count()) +
                                                  " devices that holds the model; other planners may leave devices idle"};
  }

 private:
  [[nodiscard]] evaluate_options judging() const {
    return {.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic, .epsilon = options_.epsilon};
  }

  // Whether that changes the plan.
  static bool give_one_order(plan& p) {
    const auto before = p.pipelines;
    for (std::size_t i = 0; i < p.pipelines.front().stages.size(); ++i) {
      int most = 0;
      for (const auto& line : p.pipelines) most = std::max(most, line.stages[i].warmup);
      for (auto& line : p.pipelines) line.stages[i].warmup = most;
    }
    return p.pipelines != before;
  }

  price_book& book_;
  const interop_problem& placed_;
  const stage_prices& table_;
  const planning_problem& asked_;
  baseline_options options_;
  std::string planner_;
  std::vector<schedule_id> schedules_;                      // that are tried until one fits
  std::map<std::array<int, 3>, std::vector<int>> by_mesh_;  // subcluster, nodes, devices per node
  std::optional<plan> best_;
  std::optional<refusal> why_;
  std::int64_t plans_ = 0;
  bool stopped_ = false;
};

}  // namespace hetsched::detail
