// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/stage_orders_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/stage_rows.hpp>
#include <hetsched/planners/interop_dp/detail/tapered_cuts.hpp>
#include <hetsched/planners/parallel_pipelines/detail/candidates.hpp>
#include <hetsched/planners/parallel_pipelines/detail/neighbours.hpp>
#include <hetsched/planners/parallel_pipelines/detail/pipeline_kinds.hpp>

namespace hetsched::detail {

/// Other orders and placements of the stages of the best plan's pipelines, with cuts of their own; then of the best set that was
/// not gone on from yet, as long as it is nearly as good as the best one. Equal pipelines change together. Searches for one
/// pipeline keep the stages of a subcluster together, which is most often the best; here a pipeline may come back.
class stage_order_search {
 public:
  stage_order_search(const interop_problem& problem, const stage_prices& table, const cluster& hardware,
                     const any_cost_model& costs, plan_candidates& found, function_ref<bool()> go_on)
      : problem_(problem), cuts_(problem, table, hardware, costs), found_(found), go_on_(go_on) {}

  /// Ends where no set is left to go on from, or after `most` ends of stages and actions of plans. `well`: more cuts of more rows
  /// are tried.
  void run(std::int64_t most, bool well) {
    most_ = most;
    close_ = well ? 1.04 : 1.006;
    kinds_ = kinds_of_best(found_);
    if (kinds_.empty()) return;
    open_.push_back({found_.best_s(), kinds_});
    while (!open_.empty() && may_go_on()) {
      const auto next =
          std::min_element(open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
      if (next->value > found_.best_s() * near) return;
      kinds_ = std::move(next->kinds);
      value_ = next->value;
      open_.erase(next);
      for (std::size_t k = 0; k < kinds_.size() && change(k); ++k) {
      }
    }
  }

 private:
  struct open_set {
    double value = 0;
    std::vector<pipeline_kind> kinds;
  };

  [[nodiscard]] bool may_go_on() const { return cuts_.looked_at() + actions_ < most_ && go_on_(); }

  // Looks at other rows of a kind of pipelines, until one is better than all. Returns whether none was.
  bool change(std::size_t which) {
    auto& own = kinds_[which];
    const auto stages = own.stages;
    const int microbatches = *std::max_element(own.microbatches.begin(), own.microbatches.end());
    const auto now = cuts_.played(stages, microbatches, true);
    if (!(now.makespan_s < infinity)) return true;
    const double enough = now.makespan_s * near;
    std::vector<int> room = problem_.devices;
    for (std::size_t k = 0; k < kinds_.size(); ++k)
      for (const auto& s : kinds_[k].stages)
        if (k != which) take(room, s.placement, kinds_[k].microbatches.size());
    std::vector<int> from;
    for (const auto& s : stages) from.push_back(s.placement);
    const bool none = for_each_stage_order(problem_, from, [&](const std::vector<int>& row) {
      auto left = room;
      for (const int p : row) take(left, p, own.microbatches.size());
      if (*std::min_element(left.begin(), left.end()) < 0 || !looked_at_.insert({which, row}).second) return true;
      if (!may_go_on()) return false;
      auto next = cuts_.solve(row, microbatches, enough, false);
      if (next.makespan_s < now.makespan_s * close_)
        if (auto closer = cuts_.solve(row, microbatches, next.makespan_s, true); closer.makespan_s < next.makespan_s)
          next = std::move(closer);
      if (!(next.makespan_s < enough) || next.stages == stages) return true;
      const double before = found_.best_s();
      double value = value_ * next.makespan_s / now.makespan_s;
      own.stages = std::move(next.stages);
      if (next.makespan_s < now.makespan_s * (1 + doubt) || value < before * (1 + doubt)) value = judge();
      if (value < before)
        while (move_layers(own.stages, value, 3, 2, [&] { return judge(); })) {
        }
      if (value < before * near) open_.push_back({value, kinds_});
      return value >= before;
    });
    own.stages = stages;
    if (!none && kinds_.size() > 1) looked_at_.clear();
    return none;
  }

  [[nodiscard]] double judge() {
    if (!may_go_on()) return infinity;
    for (const auto& k : kinds_)
      for (const int m : k.microbatches) actions_ += m * static_cast<std::int64_t>(k.stages.size());
    return found_.consider(lines_of<plan_candidates>(kinds_));
  }

  void take(std::vector<int>& room, int placement, std::size_t times) const {
    const auto& placed = at(problem_.placements, placement);
    at(room, placed.subcluster) -= placed.devices * static_cast<int>(times);
  }

  static constexpr double near = 1.05;  // how far behind the best a set may be that is gone on from, and how far guesses are off
  static constexpr double doubt = 0.001;  // how far what is played may be from what evaluate says

  const interop_problem& problem_;
  tapered_cuts cuts_;
  plan_candidates& found_;
  function_ref<bool()> go_on_;
  std::vector<pipeline_kind> kinds_;
  double value_ = 0;  // of the set that is gone on from
  double close_ = 1;  // other cuts are tried of rows that take up to so many times as long as the one at hand
  std::vector<open_set> open_;
  std::set<std::pair<std::size_t, std::vector<int>>> looked_at_;  // rows of kinds
  std::int64_t most_ = 0, actions_ = 0;
};

}  // namespace hetsched::detail
