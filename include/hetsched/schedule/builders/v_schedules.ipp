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

HETSCHED_INLINE schedule v_schedule(int ranks, int microbatches, const v_rule& rule) {
  require_counts(ranks, microbatches);
  const auto block = v_block(ranks, rule.hops);
  const auto count = as_size(ranks), each = as_size(microbatches);
  int room = 0;
  for (const auto& t : block) room = std::max(room, v_peak(t, microbatches));

  struct rank_state {
    v_walk walk;
    int held = 0;
    std::size_t weights_done = 0;
    std::vector<action> weights;          // those possible so far
    std::array<std::vector<int>, 4> end;  // by leg and microbatch
  };
  std::vector<rank_state> state(count);
  for (std::size_t r = 0; r < count; ++r) {
    state[r].walk = {.times = &block[r], .microbatches = microbatches};
    for (auto& e : state[r].end) e.assign(each, INT_MAX);
  }
  const auto possible = [&](std::size_t r, std::size_t leg, int now) {
    const auto m = as_size(state[r].walk.next[leg]);
    const auto done = [&](std::size_t rank, std::size_t k) { return state[rank].end[k][m] <= now; };
    const bool down = leg % 2 == 0;
    if (down ? r == 0 : r + 1 == count) return leg == 0 || done(r, leg - 1);
    return done(down ? r - 1 : r + 1, leg) && (is_v_forward(leg) || done(r, 3 - leg));
  };
  const auto fits_early = [&](const rank_state& s, std::size_t leg) {  // with room for everything that it overtakes
    v_walk walk = s.walk;
    const int until = walk.time(leg);
    ++walk.next[leg];
    int held = s.held + 1;
    for (auto k = walk.first(); walk.time(k) < until; k = walk.first()) {
      ++walk.next[k];
      held += is_v_forward(k) ? 1 : -1;
      if (held > room) return false;
    }
    return held <= room;
  };

  auto result = make_schedule(ranks, microbatches, v_map(ranks));
  for (auto& l : result.lanes) l.actions.reserve(6 * each);
  std::size_t left = 6 * count * each;
  for (int now = 0; left > 0; ++now)
    for (std::size_t r = 0; r < count; ++r) {
      auto& s = state[r];
      constexpr std::size_t none = 4;
      std::size_t leg = s.walk.first();
      if (s.walk.time(leg) == INT_MAX || !possible(r, leg, now)) {
        leg = none;
        if (rule.early_forwards && s.weights.empty())
          for (std::size_t k = 0; k < 2; ++k)
            if (s.walk.time(k) < (leg == none ? INT_MAX : s.walk.time(leg)) && possible(r, k, now) && fits_early(s, k)) leg = k;
      }
      auto& list = result.lanes[r].actions;
      if (leg == none || (is_v_forward(leg) && s.held == room)) {
        if (s.weights_done == s.weights.size()) continue;
        list.push_back(s.weights[s.weights_done++]);
        --s.held;
      } else {
        const int rank = static_cast<int>(r), m = s.walk.next[leg]++;
        const int stage = leg == 0 || leg == 3 ? rank : 2 * ranks - 1 - rank;
        at(s.end[leg], m) = now + 1;
        if (is_v_forward(leg)) {
          list.push_back({.kind = action_kind::forward, .stage = stage, .microbatch = m});
          ++s.held;
        } else {
          list.push_back({.kind = action_kind::backward_input, .stage = stage, .microbatch = m});
          s.weights.push_back({.kind = action_kind::backward_weight, .stage = stage, .microbatch = m});
        }
      }
      --left;
    }
  return result;
}

}  // namespace hetsched::detail
