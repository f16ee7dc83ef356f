// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <climits>
#include <cstddef>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/builders/v_schedules.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched::detail {

inline constexpr int v_period = 6;

/// Goes through a rank's forwards and input gradients in the order of their times.
struct v_walk {
  const v_times* times = nullptr;
  int microbatches = 0;
  std::array<int, 4> next{};  ///< by leg, the microbatch whose turn it is

  [[nodiscard]] int time(std::size_t leg) const {
    return next[leg] < microbatches ? (*times)[leg] + v_period * next[leg] : INT_MAX;
  }
  /// Leg of the action that comes first; all have been if its time is INT_MAX.
  [[nodiscard]] std::size_t first() const {
    std::size_t leg = 0;
    for (std::size_t k = 1; k < 4; ++k)
      if (time(k) < time(leg)) leg = k;
    return leg;
  }
};

[[nodiscard]] constexpr bool is_v_forward(std::size_t leg) { return leg < 2; }

/// Most activations that a rank holds when everything happens at its time, weight gradients in the free units.
[[nodiscard]] inline int v_peak(const v_times& times, int microbatches) {
  v_walk walk{.times = &times, .microbatches = microbatches};
  int held = 0, weights = 0, most = 0;
  for (int now = 0;; ++now) {
    const auto leg = walk.first();
    const int time = walk.time(leg);
    if (time == INT_MAX) return most;
    if (time > now) {
      if (weights > 0) {
        --weights;
        --held;
      }
      continue;
    }
    ++walk.next[leg];
    ++(is_v_forward(leg) ? held : weights);
    most = std::max(most, held);
  }
}

/// The building block: the times of microbatch 0 on every rank. hops[leg] units lie between neighbouring
/// ranks on a leg; the three turns take as long as needed for no rank to have two things to do at once, and are those that
/// hold least, then those that take least.
[[nodiscard]] inline std::vector<v_times> v_block(int ranks, const std::array<int, 4>& hops) {
  std::vector<v_times> block(as_size(ranks)), best;
  int best_peak = INT_MAX, best_turns = INT_MAX;
  const int last = ranks - 1;
  for (int turns = 0; turns < v_period * v_period * v_period; ++turns) {
    const int a = 1 + turns / (v_period * v_period), b = 1 + turns / v_period % v_period, c = 1 + turns % v_period;
    bool free = true;
    for (int r = 0; r < ranks && free; ++r) {
      const int up = hops[0] * last + a, down = up + hops[1] * last + b, back = down + hops[2] * last + c;
      const v_times t{hops[0] * r, up + hops[1] * (last - r), down + hops[2] * r, back + hops[3] * (last - r)};
      unsigned taken = 0;
      for (const int time : t) taken |= 1u << static_cast<unsigned>(time % v_period);
      free = std::popcount(taken) == 4;
      at(block, r) = t;
    }
    int peak = 0;
    const int allowed = a + b + c < best_turns ? best_peak : best_peak - 1;
    for (std::size_t r = 0; r < block.size() && free; ++r) {
      peak = std::max(peak, v_peak(block[r], 2 * ranks + 2));
      free = peak <= allowed;
    }
    if (!free) continue;
    best = block;
    best_peak = peak;
    best_turns = a + b + c;
  }
  HETSCHED_EXPECTS(!best.empty());
  return best;
}

/// Ranks that do what a building block says, as far as what they need is there and there is room, or what comes next.
class v_play {
 public:
  /// Both outlive it.
  v_play(const std::vector<v_times>& block, int microbatches, const v_rule& rule)
      : microbatches_(microbatches), rule_(rule), ranks_(block.size()) {
    for (std::size_t r = 0; r < block.size(); ++r) {
      room_ = std::max(room_, v_peak(block[r], microbatches));
      ranks_[r].walk = {.times = &block[r], .microbatches = microbatches};
      for (auto& e : ranks_[r].end) e.assign(as_size(microbatches), INT_MAX);
    }
  }

  /// Fills in the actions of all lanes.
  void run(schedule& result) {
    const std::size_t each = 6 * as_size(microbatches_);
    for (auto& l : result.lanes) l.actions.reserve(each);
    std::size_t left = each * ranks_.size();
    for (int now = 0; left > 0; ++now)
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (step(r, now, result.lanes[r].actions)) --left;
  }

 private:
  static constexpr std::size_t none = 4;
  struct rank_state {
    v_walk walk;
    int held = 0;
    std::size_t weights_done = 0;
    std::vector<action> weights;          // those possible so far
    std::array<std::vector<int>, 4> end;  // by leg and microbatch
  };

  [[nodiscard]] bool possible(std::size_t r, std::size_t leg, int now) const {
    const auto m = as_size(ranks_[r].walk.next[leg]);
    const auto done = [&](std::size_t other, std::size_t k) { return ranks_[other].end[k][m] <= now; };
    const bool down = leg % 2 == 0;
    if (down ? r == 0 : r + 1 == ranks_.size()) return leg == 0 || done(r, leg - 1);
    return done(down ? r - 1 : r + 1, leg) && (is_v_forward(leg) || done(r, 3 - leg));
  }

  // Whether a forward has room now, also for everything that it overtakes.
  [[nodiscard]] bool fits_early(const rank_state& own, std::size_t leg) const {
    v_walk walk = own.walk;
    const int until = walk.time(leg);
    ++walk.next[leg];
    int held = own.held + 1;
    for (auto k = walk.first(); walk.time(k) < until; k = walk.first()) {
      ++walk.next[k];
      held += is_v_forward(k) ? 1 : -1;
      if (held > room_) return false;
    }
    return held <= room_;
  }

  // The leg of what the rank does now; none: a weight gradient, or nothing.
  [[nodiscard]] std::size_t leg_of(std::size_t r, int now) const {
    const auto& own = ranks_[r];
    std::size_t leg = own.walk.first();
    if (own.walk.time(leg) == INT_MAX || !possible(r, leg, now)) {
      leg = none;
      if (rule_.early_forwards && own.weights.empty())
        for (std::size_t k = 0; k < 2; ++k)
          if (own.walk.time(k) < (leg == none ? INT_MAX : own.walk.time(leg)) && possible(r, k, now) && fits_early(own, k))
            leg = k;
    }
    return leg == none || (is_v_forward(leg) && own.held == room_) ? none : leg;
  }

  // Returns whether the rank does anything.
  bool step(std::size_t r, int now, std::vector<action>& list) {
    auto& own = ranks_[r];
    const auto leg = leg_of(r, now);
    if (leg == none) {
      if (own.weights_done == own.weights.size()) return false;
      list.push_back(own.weights[own.weights_done++]);
      --own.held;
      return true;
    }
    const int rank = static_cast<int>(r), m = own.walk.next[leg]++;
    const int stage = leg == 0 || leg == 3 ? rank : 2 * static_cast<int>(ranks_.size()) - 1 - rank;
    at(own.end[leg], m) = now + 1;
    if (is_v_forward(leg)) {
      list.push_back({.kind = action_kind::forward, .stage = stage, .microbatch = m});
      ++own.held;
    } else {
      list.push_back({.kind = action_kind::backward_input, .stage = stage, .microbatch = m});
      own.weights.push_back({.kind = action_kind::backward_weight, .stage = stage, .microbatch = m});
    }
    return true;
  }

  int microbatches_;
  const v_rule& rule_;
  std::vector<rank_state> ranks_;
  int room_ = 0;
};

HETSCHED_INLINE schedule v_schedule(int ranks, int microbatches, const v_rule& rule) {
  require_counts(ranks, microbatches);
  const auto block = v_block(ranks, rule.hops);
  auto result = make_schedule(ranks, microbatches, v_map(ranks));
  v_play(block, microbatches, rule).run(result);
  return result;
}

}  // namespace hetsched::detail
