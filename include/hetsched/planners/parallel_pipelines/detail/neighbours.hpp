// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/neighbours_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/parallel_pipelines/detail/pipeline_kinds.hpp>

namespace hetsched::detail {

/// Moves up to `most` layers from one stage to another that is less than `furthest` stages away, those in between moving along:
/// each move that makes judge() less than `value`, which is that of the stages as they are, stays. Returns whether any did.
/// Complexity: O(n * furthest * most) calls of judge for n stages.
template <class Judge>
bool move_layers(std::vector<interop_stage>& stages, double& value, int furthest, int most, Judge judge) {
  const auto count = static_cast<int>(stages.size());
  bool better = false;
  for (int apart = 1; apart < std::min(count, furthest); ++apart)
    for (int from = 0; from < count; ++from)
      for (const int to : {from - apart, from + apart})
        for (int layers = 1; layers <= most; ++layers) {
          if (to < 0 || to >= count || at(stages, from).layers.size() <= layers) continue;
          const auto before = stages;
          const int up = to > from ? -layers : layers;  // what the cuts in between move by
          for (int i = std::min(from, to); i < std::max(from, to); ++i) {
            at(stages, i).layers.last += up;
            at(stages, i + 1).layers.first += up;
          }
          const double now = judge();
          if (now < value) {
            value = now;
            better = true;
          } else {
            stages = before;
          }
        }
  return better;
}

/// Looks at neighbours of the best plan, and goes on from each that is better: a few layers from one stage to another, those in
/// between moving along, or another placement on the same submesh. Searches go by latency and period, which the simulated
/// iteration is not exactly; here it decides. Equal pipelines change together.
template <class Candidates>
class neighbour_search {
 public:
  neighbour_search(const interop_problem& problem, Candidates& found, function_ref<bool()> go_on)
      : problem_(problem), found_(found), go_on_(go_on) {}

  /// Ends where no neighbour is better, or after `tries` plans.
  void run(int tries) {
    kinds_ = kinds_of_best(found_);
    tries_ = tries;
    for (bool better = true; better && may_go_on();) {
      better = false;
      for (std::size_t k = 0; k < kinds_.size(); ++k) better = move_layers(k) || better;
      for (std::size_t k = 0; k < kinds_.size(); ++k) better = change_placements(k) || better;
    }
  }

 private:
  using stage_list = std::vector<interop_stage>;

  [[nodiscard]] bool may_go_on() const { return tries_ > 0 && go_on_(); }

  // Goes on from a plan with these stages if it is better.
  bool take(std::size_t which, stage_list stages) {
    if (!may_go_on()) return false;
    --tries_;
    std::swap(kinds_[which].stages, stages);
    const double before = found_.least();
    found_.consider(lines_of<Candidates>(kinds_));
    if (found_.least() < before) return true;
    std::swap(kinds_[which].stages, stages);
    return false;
  }

  bool move_layers(std::size_t which) {
    double value = found_.least();
    return hetsched::detail::move_layers(kinds_[which].stages, value, furthest, 3, [&] {
      if (!may_go_on()) return infinity;
      --tries_;
      found_.consider(lines_of<Candidates>(kinds_));
      return found_.least();
    });
  }

  bool change_placements(std::size_t which) {
    bool better = false;
    for (std::size_t i = 0; i < kinds_[which].stages.size(); ++i)
      for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
        const auto current = as_size(kinds_[which].stages[i].placement);
        if (p == current || problem_.placements[p].barred ||
            !(problem_.placements[p].where.mesh == problem_.placements[current].where.mesh))
          continue;
        auto variant = kinds_[which].stages;
        variant[i].placement = static_cast<int>(p);
        better = take(which, std::move(variant)) || better;
      }
    return better;
  }

  static constexpr int furthest = 12;  // stages apart

  const interop_problem& problem_;
  Candidates& found_;
  function_ref<bool()> go_on_;
  std::vector<pipeline_kind> kinds_;
  int tries_ = 0;
};

}  // namespace hetsched::detail
