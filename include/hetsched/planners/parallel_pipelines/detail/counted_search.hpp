// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/parallel_pipelines/detail/counted.hpp>
#include <hetsched/planners/parallel_pipelines/detail/worth.hpp>

namespace hetsched::detail {

/// Goes through all sets of listed pipelines that can beat the best known plan. Reductions between pipelines make their times
/// depend on each other; what they take without them bounds a part of a set, and what counted_batches says of the devices and
/// microbatches that are left bounds the rest.
class counted_search {
 public:
  using line = std::pair<const std::vector<interop_stage>*, int>;
  using judge = function_ref<double(std::span<const line>)>;  ///< of a whole set: the least objective known then

  counted_search(const interop_problem& problem, const listed_pipelines& pipelines, const counted_batches& batches,
                 const end_table& ends, const plan_worth& worth, int microbatches)
      : pipelines_(pipelines),
        batches_(batches),
        ends_(ends),
        worth_(worth),
        microbatches_(microbatches),
        used_(problem.devices) {}

  /// Returns whether all sets were looked at. `box`: of all devices; `best`: the least objective known.
  [[nodiscard]] bool run(int box, double best, judge look_at, function_ref<bool()> go_on) {
    best_ = best;
    std::fill(used_.begin(), used_.end(), 0);
    return extend(box, microbatches_, 1, 0, microbatches_, look_at, go_on);
  }

 private:
  // Pipelines of a set stand in order of boxes and positions, and of falling microbatches where they are equal.
  [[nodiscard]] bool extend(int rest, int left, int first_box, std::size_t first, int most, judge look_at,
                            function_ref<bool()> go_on) {
    const auto devices = pipelines_.devices_of(rest);
    for (int box = first_box; box <= rest; ++box) {
      const auto taken = pipelines_.devices_of(box);
      if (!std::equal(taken.begin(), taken.end(), devices.begin(), [](int a, int b) { return a <= b; })) continue;
      const auto& lines = pipelines_.of(box);
      const int after = batches_.rest_of(rest, box);
      for (std::size_t k = 0; k < used_.size(); ++k) used_[k] += taken[k];
      const double rate = worth_.rate(used_);
      const auto cannot_win = [&](double seconds) { return worth_.value(seconds * (1 - tolerance::rounding), rate) >= best_; };
      for (std::size_t i = box == first_box ? first : 0; i < lines.size(); ++i) {
        const bool same = box == first_box && i == first && !set_.empty();
        const auto& head = lines[i].stages.front();
        const double reduction = ends_.reduction(head.placement, head.layers.first, head.layers.last);
        const auto take = [&](int own) {
          if (++steps_ > most_steps || (steps_ % 256 == 0 && go_on && !go_on())) return false;
          set_.push_back({&lines[i].stages, own});
          bool go = true;
          if (own == left)
            best_ = std::min(best_, look_at(set_));
          else
            go = extend(after, left - own, box, i, own, look_at, go_on);
          set_.pop_back();
          return go;
        };
        // Alone a pipeline has nothing to add up: it may win where it cannot with others.
        const bool whole = set_.empty();
        if (whole && !cannot_win(lines[i].least_s(left)) && !take(left)) return false;
        const int last = whole ? left - 1 : same ? std::min(most, left) : left;
        for (int own = 1; own <= last; ++own) {
          if (cannot_win(lines[i].least_s(own) + reduction)) break;
          if (own < left && (cannot_win(batches_.least(after, left - own)) ||
                             (worth_.money() && rest_cannot_win(after, left - own, lines[i].least_s(own) + reduction))))
            continue;
          if (!take(own)) return false;
        }
      }
      for (std::size_t k = 0; k < used_.size(); ++k) used_[k] -= taken[k];
    }
    return true;
  }

  // What is left of the batch, on any of the devices that are left, beside a set that takes `seconds` at least.
  [[nodiscard]] bool rest_cannot_win(int rest, int left, double seconds) const {
    const auto devices = pipelines_.devices_of(rest);
    for (int box = 1; box <= rest; ++box) {
      auto used = pipelines_.devices_of(box);
      if (!std::equal(used.begin(), used.end(), devices.begin(), [](int a, int b) { return a <= b; })) continue;
      for (std::size_t k = 0; k < used.size(); ++k) used[k] += used_[k];
      if (worth_.value(std::max(seconds, batches_.least(box, left)) * (1 - tolerance::rounding), worth_.rate(used)) < best_)
        return false;
    }
    return true;
  }

  static constexpr std::int64_t most_steps = 100'000;

  const listed_pipelines& pipelines_;
  const counted_batches& batches_;
  const end_table& ends_;
  const plan_worth& worth_;
  int microbatches_;
  std::vector<int> used_;  // devices of the set, by subcluster
  double best_ = infinity;
  std::int64_t steps_ = 0;
  std::vector<line> set_;
};

}  // namespace hetsched::detail
