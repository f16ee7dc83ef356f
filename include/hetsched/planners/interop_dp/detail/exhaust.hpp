// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/anytime_test.cpp.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// Goes through all plans, also those that come back to a subcluster, that can be faster than the best known iteration, whatever
/// their warm-ups: for problems so small that they can be counted. With U the time of a microbatch there and back before a stage,
/// the stage ends its work after U + M t at the earliest, and an iteration takes at least the latency and M - 1 times the longest
/// of a stage's forward, its backward, and what a boundary is occupied for.
class plan_enumeration {
 public:
  /// `order`: of the subclusters, if it is fixed. `uniform`: the stages of a subcluster follow each other and have one placement.
  plan_enumeration(const interop_problem& problem, const stage_prices& table, int microbatches, bool use_all,
                   const std::vector<int>& order, bool uniform = false)
      : problem_(problem), table_(table), microbatches_(microbatches), use_all_(use_all), uniform_(uniform), order_(order) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) open_.push_back(static_cast<int>(p));
    used_.resize(problem.devices.size());
    left_.resize(problem.devices.size(), true);
    // The least latency of the layers from each one on.
    rest_.assign(as_size(problem.layers + 1), infinity);
    rest_.back() = 0;
    for (int first = problem.layers - 1; first >= 0; --first)
      for (int last = first + 1; last <= problem.layers; ++last)
        for (const int p : open_) {
          auto& least = at(rest_, first);
          least = std::min(least, table.time(p, first, last) + at(rest_, last));
        }
  }

  /// Calls visit(stages) for each plan whose bound is below best(). Returns false if more than `most` stages were looked at, or
  /// go_on() was false.
  template <class Best, class Visit, class GoOn>
  [[nodiscard]] bool run(std::int64_t most, Best best, Visit visit, GoOn go_on) {
    std::vector<interop_stage> stages;
    left_to_look_ = most;
    return extend(stages, 0, 0, 0, best, visit, go_on);
  }

  /// The least bound of all plans that were visited. After a run to the end no plan is below it or the best one, whichever is
  /// less.
  [[nodiscard]] double least() const { return least_; }

 private:
  [[nodiscard]] bool may_enter(int from, int to) const {
    if (order_.empty()) return !uniform_ || at(left_, to);
    if (!at(left_, to)) return false;
    return from < 0 || std::find(order_.begin(), order_.end(), from) < std::find(order_.begin(), order_.end(), to);
  }

  template <class Best, class Visit, class GoOn>
  [[nodiscard]] bool extend(std::vector<interop_stage>& stages, int first, double before, double bound, Best& best, Visit& visit,
                            GoOn& go_on) {
    if (first == problem_.layers) {
      if (use_all_ && used_ != problem_.devices) return true;
      // Judging takes as long as looking at so many stages, and longer where a schedule is long.
      const auto actions = static_cast<std::int64_t>(stages.size()) * microbatches_;
      left_to_look_ -= actions > 20'000 ? actions / 20 : 100;
      least_ = std::min(least_, bound * (1 - tolerance::rounding));
      visit(stages);
      return go_on();
    }
    const int previous = stages.empty() ? -1 : stages.back().placement;
    const int from = previous < 0 ? -1 : at(problem_.placements, previous).subcluster;
    for (const int p : open_) {
      const auto& placed = at(problem_.placements, p);
      const auto k = as_size(placed.subcluster);
      if (placed.subcluster != from ? !may_enter(from, placed.subcluster) : uniform_ && p != previous) continue;
      if (used_[k] + placed.devices > problem_.devices[k]) continue;
      double way = 0, occupied = 0;
      if (previous >= 0) {
        const int a = at(problem_.placements, previous).transfer_class, b = placed.transfer_class;
        const auto &apart = problem_.transfer(a, b)[problem_.kind_before(first)],
                   &near = problem_.near_transfer(a, b)[problem_.kind_before(first)];
        way = std::min(apart.round_trip, near.round_trip);
        occupied = std::min(apart.occupied, near.occupied);
        if (!(way < infinity)) continue;
      }
      const bool leaves = from >= 0 && placed.subcluster != from;
      if (leaves) at(left_, from) = false;
      used_[k] += placed.devices;
      bool go = true;
      for (int last = first + 1; go && last <= problem_.layers; ++last) {
        if (--left_to_look_ < 0) {
          go = false;
          break;
        }
        if (table_.memory(p, first, last, 1) > placed.room + 16) continue;
        const double t = table_.time(p, first, last), forward = table_.forward(p, first, last);
        const double start = before + way, latency = start + t + at(rest_, last);
        const double own = std::max(
            {bound, start + microbatches_ * t, latency + (microbatches_ - 1) * std::max({forward, t - forward, occupied})});
        if (own * (1 - tolerance::rounding) >= best()) continue;
        stages.push_back({p, {first, last}});
        go = extend(stages, last, start + t, own, best, visit, go_on);
        stages.pop_back();
      }
      used_[k] -= placed.devices;
      if (leaves) at(left_, from) = true;
      if (!go) return false;
    }
    return true;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  int microbatches_;
  bool use_all_, uniform_;
  std::vector<int> order_;
  std::vector<int> open_;
  std::vector<int> used_;   // devices, by subcluster
  std::vector<bool> left_;  // by subcluster: whether a pipeline that does not come back may still come to it
  std::vector<double> rest_;
  std::int64_t left_to_look_ = 0;
  double least_ = infinity;
};

}  // namespace hetsched::detail
