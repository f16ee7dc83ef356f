// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/neighbours_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/planners/interop_dp/problem.hpp>

namespace hetsched::detail {

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
    if (!load()) return;
    tries_ = tries;
    for (bool better = true; better && may_go_on();) {
      better = false;
      for (std::size_t k = 0; k < kinds_.size(); ++k) better = move_layers(k) || better;
      for (std::size_t k = 0; k < kinds_.size(); ++k) better = change_placements(k) || better;
    }
  }

 private:
  using stage_list = std::vector<interop_stage>;
  struct kind {
    stage_list stages;
    std::vector<int> microbatches;  // of each pipeline of these stages
  };

  // The kinds of pipelines of the best plan; false if there is none, or one of them is of placements that are not known here.
  bool load() {
    if (!found_.best()) return false;
    for (const auto& own : found_.best()->pipelines) {
      auto stages = found_.stages_of(own);
      if (!stages) return false;
      const auto known = std::find_if(kinds_.begin(), kinds_.end(), [&](const kind& k) { return k.stages == *stages; });
      if (known != kinds_.end())
        known->microbatches.push_back(own.microbatches);
      else
        kinds_.push_back({*std::move(stages), {own.microbatches}});
    }
    return true;
  }

  [[nodiscard]] bool may_go_on() const { return tries_ > 0 && go_on_(); }

  // Goes on from a plan with these stages if it is better.
  bool take(std::size_t which, stage_list stages) {
    if (!may_go_on()) return false;
    --tries_;
    std::swap(kinds_[which].stages, stages);
    std::vector<typename Candidates::line> lines;
    for (const auto& k : kinds_)
      for (const int m : k.microbatches) lines.push_back({&k.stages, m});
    const double before = found_.least();
    found_.consider(lines);
    if (found_.least() < before) return true;
    std::swap(kinds_[which].stages, stages);
    return false;
  }

  bool move_layers(std::size_t which) {
    const auto count = static_cast<int>(kinds_[which].stages.size());
    bool better = false;
    for (int apart = 1; apart < std::min(count, furthest); ++apart)
      for (int from = 0; from < count; ++from)
        for (const int to : {from - apart, from + apart})
          for (const int layers : {1, 2, 3}) {
            if (to < 0 || to >= count) continue;
            auto moved = kinds_[which].stages;
            auto& own = moved[static_cast<std::size_t>(from)].layers;
            if (own.last - own.first <= layers) continue;
            const int up = to > from ? -layers : layers;  // what the cuts in between move by
            for (int i = std::min(from, to); i < std::max(from, to); ++i) {
              moved[static_cast<std::size_t>(i)].layers.last += up;
              moved[static_cast<std::size_t>(i) + 1].layers.first += up;
            }
            better = take(which, std::move(moved)) || better;
          }
    return better;
  }

  bool change_placements(std::size_t which) {
    bool better = false;
    for (std::size_t i = 0; i < kinds_[which].stages.size(); ++i)
      for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
        const auto current = static_cast<std::size_t>(kinds_[which].stages[i].placement);
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
  std::vector<kind> kinds_;
  int tries_ = 0;
};

}  // namespace hetsched::detail
