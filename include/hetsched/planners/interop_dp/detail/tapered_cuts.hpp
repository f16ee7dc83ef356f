// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/tapered_cuts_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp/detail/least_period.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/search/fuller_warmups.hpp>

namespace hetsched::detail {

/// A pipeline of so many microbatches, played.
struct played_stages {
  std::vector<interop_stage> stages = {};
  std::vector<int> warmups = {};
  double makespan_s = infinity;
};

/// Cuts a model into stages whose placements are settled, in their order. No schedule that leaves stages whole ends before a
/// microbatch has been to a stage and back and that stage has computed all m of them: where stages get shorter from the first to
/// the last, by up to a share of 1/m each, all can end together if enough microbatches are in flight. How much shorter is best
/// depends on memory: several tapers, and warm-ups from the least ones to as many as fit, are played.
class tapered_cuts {
 public:
  /// All outlive this.
  tapered_cuts(const interop_problem& problem, const stage_prices& table, const cluster& hardware, const any_cost_model& costs)
      : problem_(problem), table_(table), hardware_(hardware), costs_(costs), row_(as_size(problem.layers + 1)) {
    if (!problem.placements.empty()) copies_ = costs.copies(problem.placements.front().where);
    const auto classes = as_size(problem.classes());
    for (std::size_t i = 0; i < classes * classes * as_size(problem.kinds); ++i) {
      way_.push_back(problem.prices[i]);
      if (problem.near_prices.empty()) continue;
      way_.back().round_trip = std::min(way_.back().round_trip, problem.near_prices[i].round_trip);
      way_.back().occupied = std::min(way_.back().occupied, problem.near_prices[i].occupied);
    }
  }

  /// Stages with the best warm-ups that fit in memory; makespan_s is infinite if none do. `closely`: also with what is near them.
  [[nodiscard]] played_stages played(std::vector<interop_stage> stages, int microbatches, bool closely) {
    played_stages found{std::move(stages)};
    const auto caps = warmup_caps(problem_, table_, found.stages, microbatches);
    if (*std::min_element(caps.begin(), caps.end()) < 1) return found;
    auto bare = search_pipeline(problem_, table_, found.stages);
    for (std::size_t i = 0; i < found.stages.size(); ++i) {
      const auto& s = found.stages[i];
      const double forward = table_.forward(s.placement, s.layers.first, s.layers.last);
      bare.backward_s[i] = bare.forward_s[i] - forward;
      bare.forward_s[i] = forward;
    }
    for (const double c : bare.transfer_s)
      if (!(c < longest_time_s)) return found;
    looked_at_ += 10 * static_cast<std::int64_t>(found.stages.size()) * microbatches;
    auto best = shortest_warmups(bare, caps, microbatches, closely ? 100'000 : 0);
    found.warmups = std::move(best.counts);
    found.makespan_s = best.makespan_s + shared_s(found.stages);
    return found;
  }

  /// The best cuts found; makespan_s is infinite where nothing shorter than `enough` seconds was found or fits in memory.
  /// `closely`: more ways are tried.
  /// Complexity: O(stages * layers * layers of a stage) for each of some ten or hundred steps, most often far less.
  [[nodiscard]] played_stages solve(std::span<const int> placements, int microbatches, double enough, bool closely) {
    played_stages best;
    const auto count = placements.size();
    if (count == 0 || count > as_size(problem_.layers)) return best;
    microbatches_ = microbatches;
    // Shares of 1/m, and how many times the least warm-ups.
    static constexpr std::pair<double, double> ways[]{{0.4, 1.2}, {0, 1}, {0.2, 1}, {0.5, 1.5}, {0.75, 1.7}, {1, 2}, {1, 2.6}};
    const std::span tried(ways, closely ? std::size(ways) : 2);
    std::vector<interop_stage> before;
    for (const auto& [taper, fill] : tried) {
      taper_ = taper;
      fill_ = fill;
      const double longest = std::min(enough, best.makespan_s) / microbatches;
      const double period = least_period_within(placements, longest);
      if (!(period < infinity)) continue;
      for (const double longer : {1.0, 1.012, 1.04}) {
        if (longer > 1 && (!closely || !within(placements, period * longer))) break;
        if (stages_ == before) continue;
        before = stages_;
        auto found = played(stages_, microbatches, false);
        if (found.makespan_s < std::min(enough, best.makespan_s)) best = std::move(found);
      }
    }
    if (closely) shift_cuts(best, microbatches);
    return best;
  }

  /// Ends of stages and actions looked at so far.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  struct behind_cut {
    double carry = infinity, round_trip = 0;
  };

  // Moves single cuts by a few layers as long as that helps: a block of some layers is often cut at one of its ends only.
  void shift_cuts(played_stages& best, int microbatches) {
    constexpr int furthest = 4;
    constexpr std::int64_t most_actions = 2'000'000;
    constexpr int soon_played = 1000;  // actions of a pipeline
    const auto last = looked_at_ + most_actions;
    const bool warmups_too = static_cast<int>(best.stages.size()) * microbatches <= soon_played;
    for (bool better = !best.stages.empty(); better;) {
      better = false;
      for (std::size_t i = 0; i + 1 < best.stages.size(); ++i)
        for (int by = -furthest; by <= furthest; ++by) {
          auto stages = best.stages;
          stages[i].layers.last += by;
          stages[i + 1].layers.first += by;
          if (by == 0 || stages[i].layers.size() < 1 || stages[i + 1].layers.size() < 1) continue;
          if (looked_at_ > last) return;
          auto found = played(std::move(stages), microbatches, warmups_too);
          if (!(found.makespan_s < best.makespan_s * (1 - tolerance::sums))) continue;
          best = std::move(found);
          better = true;
        }
    }
  }

  // What stages take at the end to add up the gradients of parameters that they share.
  [[nodiscard]] double shared_s(const std::vector<interop_stage>& stages) {
    double sum = 0;
    for (const auto& c : copies_) {
      const auto holder = [&](int layer) {
        const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& s) { return layer < s.layers.last; });
        return static_cast<int>(found - stages.begin());
      };
      const int i = holder(c.owner), j = holder(c.layer);
      if (i == j || c.reduction_bytes == 0) continue;
      const int p = at(stages, i).placement, q = at(stages, j).placement;
      const auto [known, is_new] = shared_s_.try_emplace({p, q}, 0.0);
      if (is_new)
        known->second = shared_reduction_s(hardware_, at(problem_.placements, p).where, at(problem_.placements, q).where,
                                           static_cast<double>(c.reduction_bytes));
      sum += known->second;
    }
    return sum;
  }

  [[nodiscard]] const transfer_price& way(std::span<const int> placements, std::size_t i, int cut) const {
    const int from = at(problem_.placements, placements[i]).transfer_class;
    const int to = at(problem_.placements, placements[i + 1]).transfer_class;
    return at(way_, (from * problem_.classes() + to) * problem_.kinds + problem_.kind_before(cut));
  }

  // The shortest period of the last stage for which there are cuts, within a few parts in a thousand; then they are in stages_.
  [[nodiscard]] double least_period_within(std::span<const int> placements, double longest) {
    if (!(longest > 0)) return infinity;
    double rate = 0;
    for (const int p : placements) rate += 1 / std::max(table_.time(p, 0, problem_.layers), least_period_s);
    double low = 0.8 / rate, high = 1.06 / rate;
    while (!within(placements, std::min(high, longest))) {
      if (high >= longest || high > 1e6 / rate) return infinity;
      low = high;
      high *= high < 1.5 / rate ? 1.12 : 1.6;
    }
    high = std::min(high, longest);
    for (int i = 0; i < 8 && high - low > 2e-3 * high; ++i) {
      const double middle = (low + high) / 2;
      if (within(placements, middle))
        high = middle;
      else
        low = middle;
    }
    return high;
  }

  // Whether stages keep their limits, `period` being that of the last one; then they are in stages_: those of the least warm-ups,
  // from the last stage on.
  [[nodiscard]] bool within(std::span<const int> placements, double period) {
    const auto count = placements.size();
    limit_.resize(count);
    double longest = period;
    for (std::size_t i = count; i-- > 0; longest *= 1 + taper_ / microbatches_) limit_[i] = longest;
    if (!reach(placements)) return false;
    least_.assign((count + 1) * row_, infinity);
    to_.resize((count + 1) * row_);
    beyond_.resize(row_);
    least_[count * row_ + as_size(problem_.layers)] = 0;
    for (std::size_t i = count; i-- > 0;) {
      look_beyond(placements, i, period);
      settle(placements[i], i);
    }
    if (!(least_[0] < infinity)) return false;
    stages_.resize(count);
    int first = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const int last = to_[i * row_ + as_size(first)];
      stages_[i] = {placements[i], {first, last}};
      first = last;
    }
    return true;
  }

  // How far stages reach by time alone, from the front and from the back. Returns whether they reach over all layers.
  [[nodiscard]] bool reach(std::span<const int> placements) {
    const auto count = placements.size();
    const int layers = problem_.layers, all = static_cast<int>(count);
    front_.assign(count + 1, 0);
    back_.assign(count + 1, layers);
    for (std::size_t i = 0; i < count; ++i) {
      int last = front_[i];
      while (last < layers && table_.time(placements[i], front_[i], last + 1) <= limit_[i]) ++last;
      front_[i + 1] = std::min(last, layers - (all - static_cast<int>(i) - 1));
    }
    if (front_[count] < layers) return false;
    for (std::size_t i = count; i-- > 0;) {
      int first = back_[i + 1];
      while (first > 0 && table_.time(placements[i], first - 1, back_[i + 1]) <= limit_[i]) --first;
      back_[i] = std::max(first, static_cast<int>(i));
    }
    return back_[0] <= 0;
  }

  // What lies behind each end of stage i.
  void look_beyond(std::span<const int> placements, std::size_t i, double period) {
    const double* behind = least_.data() + (i + 1) * row_;
    for (int last = back_[i + 1]; last <= front_[i + 1]; ++last) {
      auto& beyond = at(beyond_, last);
      beyond = {.carry = behind[last]};
      if (i + 1 == placements.size() || !(beyond.carry < infinity)) continue;
      const auto& c = way(placements, i, last);
      beyond.round_trip = c.round_trip;
      if (c.occupied > period) beyond.carry = infinity;  // or there is no link
    }
  }

  // The best end of stage i, of placement p, for each of its first layers.
  void settle(int p, std::size_t i) {
    const double room = at(problem_.placements, p).capacity;
    double* here = least_.data() + i * row_;
    int* to = to_.data() + i * row_;
    const auto* sums = table_.prefix(p);
    for (int first = back_[i]; first <= front_[i]; ++first)
      for (int last = std::max(first + 1, back_[i + 1]); last <= front_[i + 1]; ++last) {
        const double t = sums[last].time - sums[first].time;
        if (t > limit_[i]) break;
        ++looked_at_;
        const auto& [rest, round_trip] = beyond_[as_size(last)];
        // The carry is no less.
        if (!((t + round_trip) / limit_[i] + rest < here[first])) continue;
        const auto step = unchecked::exact_step(t, round_trip, limit_[i], rest);
        if (!(step.carry < here[first])) continue;
        const double flying = std::min(std::ceil(step.warmup * fill_ - 0.5), static_cast<double>(microbatches_));
        if (table_.memory(p, first, last, std::max(flying, std::min<double>(step.warmup, microbatches_))) > room) continue;
        here[first] = step.carry;
        to[first] = last;
      }
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const cluster& hardware_;
  any_cost_model costs_;
  std::vector<parameter_copy> copies_ = {};
  std::map<std::pair<int, int>, double> shared_s_;  // by placements
  std::size_t row_;
  std::vector<transfer_price> way_;  // at the least: [from][to][kind of boundary]
  double taper_ = 0, fill_ = 1;
  int microbatches_ = 1;
  std::vector<behind_cut> beyond_;      // of the stage at hand, by last layer
  std::vector<double> limit_, least_;   // of a stage's time; what warm-ups carry: [stage][first layer]
  std::vector<int> front_, back_, to_;  // where stages reach; the best end: [stage][first layer]
  std::vector<interop_stage> stages_;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
