// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/home_cases_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/parallel_pipelines/detail/relaxation.hpp>

namespace hetsched::detail {

/// Bounds on sets of pipelines by cases: a layer is held in one subcluster by all pipelines, or in several, and then its gradient
/// goes from one to another. The relaxation alone lets each pipeline add up gradients with one of its own subcluster, which is
/// far too cheap where links between subclusters are slow. The case of the least bound is split by a layer that its cheapest
/// pipelines dispute.
class home_cases {
 public:
  using relaxation = pipeline_relaxation;

  home_cases(const interop_problem& problem, const stage_prices& table, const end_table& ends, const warmup_algebra& algebra,
             int microbatches)
      : problem_(problem), table_(table), ends_(ends), algebra_(algebra), microbatches_(microbatches) {}

  /// A bound of all cases: above `enough`, or the best for at most `most_work` ends of stages. It is that of `whole`, the
  /// relaxation without cases, where it hardly matters that a gradient crosses a link. `columns(relaxation)` is called for each
  /// case that was looked at.
  /// Complexity: a few rounds of the relaxation for each case.
  [[nodiscard]] double bound(const relaxation& whole, double enough, double gap, std::int64_t most_work,
                             function_ref<bool()> go_on, function_ref<void(const relaxation&)> columns) {
    if (whole.best_rents().devices.empty()) return whole.bound();  // it has not been improved yet
    std::vector<open_case> open;
    const auto later = [](const open_case& a, const open_case& b) { return a.bound > b.bound; };
    open.push_back({whole.bound(),
                    {std::vector<int>(as_size(problem_.layers), layer_homes::open)},
                    whole.best_rents(),
                    stages_of(whole),
                    whole.disputed()});
    while (open.front().bound < enough * (1 - gap) && open.front().disputed >= 0 && looked_at_ < most_work && go_on()) {
      std::pop_heap(open.begin(), open.end(), later);
      const auto parent = std::move(open.back());
      open.pop_back();
      for (int home = layer_homes::apart; home < static_cast<int>(problem_.devices.size()); ++home) {
        if (home == layer_homes::open) continue;
        open_case child{parent.bound, parent.homes, {}, {}, -1};
        at(child.homes.of, parent.disputed) = home;
        const auto ends = ends_.in(child.homes);
        relaxation relaxed(problem_, table_, ends, algebra_, microbatches_, true, child.homes);
        relaxed.start_from(parent.rents);
        for (const auto& c : parent.columns) (void)relaxed.add(c);
        // The last round may take as much again.
        auto within_effort = [&] { return looked_at_ + relaxed.looked_at() < 2 * most_work && go_on(); };
        const auto rise_above = [&](double bound) { return bound + least_rise * (enough - bound); };
        for (int round = 0; round < most_rounds; ++round) {
          const double before = relaxed.bound();
          if (!relaxed.improve(enough, gap, gap, within_effort) || relaxed.bound() >= enough * (1 - gap)) break;
          if (round > 0 && (relaxed.bound() < rise_above(before) || looked_at_ + relaxed.looked_at() > most_work)) break;
        }
        child.bound = std::max(child.bound, relaxed.bound());
        child.rents = relaxed.best_rents();
        child.disputed = relaxed.disputed();
        looked_at_ += relaxed.looked_at();
        if (home == layer_homes::apart && relaxed.bound() < rise_above(parent.bound)) return parent.bound;
        columns(relaxed);
        child.columns = stages_of(relaxed);
        open.push_back(std::move(child));
        std::push_heap(open.begin(), open.end(), later);
      }
    }
    return open.front().bound;
  }

  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  struct open_case {
    double bound = 0;
    layer_homes homes;
    set_rents rents;
    std::vector<std::vector<interop_stage>> columns;
    int disputed = -1;  // layer
  };
  [[nodiscard]] static std::vector<std::vector<interop_stage>> stages_of(const relaxation& relaxed) {
    std::vector<std::vector<interop_stage>> all;
    for (const auto& c : relaxed.columns()) all.push_back(c.stages);
    return all;
  }
  static constexpr int most_rounds = 6;
  static constexpr double least_rise = 0.03;  // of what is missing

  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  const warmup_algebra& algebra_;
  int microbatches_;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
