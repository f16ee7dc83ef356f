// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/planners/parallel_pipelines/counted.hpp>

namespace hetsched::detail {

/// Goes through all sets of listed pipelines that can beat the best known plan. Reductions between pipelines make their times
/// depend on each other; what they take without them bounds a part of a set, and what counted_batches says of the devices and
/// microbatches that are left bounds the rest.
template <class Table>
class counted_search {
 public:
  using line = std::pair<const std::vector<interop_stage>*, int>;
  using judge = function_ref<double(std::span<const line>)>;  ///< of a whole set: the least iteration known then

  counted_search(const interop_problem& problem, const listed_pipelines<Table>& pipelines, const counted_batches<Table>& batches,
                 const end_table& ends, int microbatches)
      : problem_(problem), pipelines_(pipelines), batches_(batches), ends_(ends), microbatches_(microbatches) {}

  /// Returns whether all sets were looked at. `box`: of all devices.
  [[nodiscard]] bool run(int box, double best_s, judge look_at, function_ref<bool()> go_on) {
    best_s_ = best_s;
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
      for (std::size_t i = box == first_box ? first : 0; i < lines.size(); ++i) {
        const bool same = box == first_box && i == first && !set_.empty();
        const auto& head = lines[i].stages.front();
        const double reduction = ends_.reduction(head.placement, head.layers.first, head.layers.last);
        const auto take = [&](int own) {
          if (++steps_ > most_steps || (steps_ % 256 == 0 && go_on && !go_on())) return false;
          set_.push_back({&lines[i].stages, own});
          bool go = true;
          if (own == left)
            best_s_ = std::min(best_s_, look_at(set_));
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
          if (own < left && cannot_win(batches_.least(after, left - own))) continue;
          if (!take(own)) return false;
        }
      }
    }
    return true;
  }

  [[nodiscard]] bool cannot_win(double seconds) const { return seconds * (1 - 1e-12) >= best_s_; }

  static constexpr std::int64_t most_steps = 100'000;

  const interop_problem& problem_;
  const listed_pipelines<Table>& pipelines_;
  const counted_batches<Table>& batches_;
  const end_table& ends_;
  int microbatches_;
  double best_s_ = infinity;
  std::int64_t steps_ = 0;
  std::vector<line> set_;
};

}  // namespace hetsched::detail
