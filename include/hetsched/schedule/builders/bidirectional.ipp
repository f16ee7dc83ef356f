// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/bidirectional.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched::detail {

inline void require_even_ranks(const char* name, int ranks, int microbatches) {
  require_counts(ranks, microbatches);
  if (ranks % 2 != 0)
    throw input_error(std::string(name) + " needs an even number of ranks, not " + std::to_string(ranks) +
                      ": its two directions meet between two ranks");
}

/// Half of the microbatches, or one more, go through direction 0.
[[nodiscard]] constexpr int first_half(int microbatches) { return (microbatches + 1) / 2; }

/// One of the two ways through a rank: a stage of a direction, and the microbatches that pass it.
struct dual_leg {
  int direction = 0;
  int stage = 0;
  int first = 0;  ///< microbatch
  int count = 0;
};

/// What a rank of DualPipe does, `outer` ranks away from its own end of `half` ranks: leg 0 comes from that end, leg 1 from the
/// turn or from the other direction. The list is made for at least 2 * half microbatches per leg; those that there are not
/// are left out, which changes no dependency of the others.
[[nodiscard]] inline std::vector<action> dualpipe_actions(int half, int outer, const std::array<dual_leg, 2>& legs) {
  const int length = std::max({legs[0].count, legs[1].count, 2 * half}), inner = half - 1 - outer;
  std::vector<action> list;
  std::vector<action> weights;
  std::size_t weights_done = 0;
  std::array<int, 2> forwards{}, backwards{};
  const auto add = [&](action_kind kind, std::size_t leg, int number, bool joined = false) {
    const auto& l = legs[leg];
    if (number >= l.count) return false;
    list.push_back({.kind = kind,
                    .joined = joined,
                    .direction = static_cast<std::int16_t>(l.direction),
                    .stage = l.stage,
                    .microbatch = l.first + number});
    return true;
  };
  const auto forward = [&](std::size_t leg) { return add(action_kind::forward, leg, forwards[leg]++); };
  const auto backward = [&](std::size_t leg, bool joined = false) { add(action_kind::backward, leg, backwards[leg]++, joined); };
  const auto input = [&](std::size_t leg) {
    const bool listed = add(action_kind::backward_input, leg, backwards[leg]++);
    weights.push_back(listed ? list.back() : action{.microbatch = no_microbatch});
    weights.back().kind = action_kind::backward_weight;
  };
  const auto weight = [&] {
    const auto& w = weights[weights_done++];
    if (w.microbatch != no_microbatch) list.push_back(w);
  };
  const auto fused = [&](std::size_t leg) {
    const bool listed = forward(leg);
    backward(1 - leg, listed);
  };

  for (int i = 0; i < 2 * inner; ++i) forward(0);
  for (int i = 0; i <= outer; ++i) {
    forward(0);
    forward(1);
  }
  for (int i = 0; i < inner; ++i) {
    input(1);
    weight();
    forward(1);
  }
  for (int i = 0; i < length - 2 * half + outer + 1; ++i) {
    if (i == 0 && inner == 0) {  // the rank at the turn waits for this forward: a backward would hold it up
      forward(0);
      backward(1);
    } else {
      fused(0);
    }
    fused(1);
  }
  for (int i = 0; i < inner; ++i) {
    backward(1);
    fused(1);
  }
  for (int i = 0; i < 2 * (outer + 1); ++i) {
    const std::size_t leg = i % 2 == 0 ? 1 : 0;
    if (i <= outer)
      backward(leg);
    else
      input(leg);
  }
  for (int i = 0; i < inner; ++i) {
    weight();
    input(0);
  }
  while (weights_done < weights.size()) weight();
  return list;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE schedule chimera(int ranks, int microbatches) {
  detail::require_even_ranks("chimera", ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, bidirectional_map(ranks), 2);
  const int down = detail::first_half(microbatches), unit = ranks / 2;
  for (auto& l : result.lanes) {
    std::vector<std::pair<int, action>> timed;
    for (int m = 0; m < microbatches; ++m) {
      const int direction = m < down ? 0 : 1, i = m < down ? m : m - down;
      const int stage = direction == 0 ? l.rank : ranks - 1 - l.rank, start = i / unit * 2 * ranks + i % unit * 2;
      action a{.direction = static_cast<std::int16_t>(direction), .stage = stage, .microbatch = m};
      timed.push_back({start + stage, a});
      a.kind = action_kind::backward;
      timed.push_back({start + 2 * ranks - 1 - stage, a});
    }
    std::sort(timed.begin(), timed.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    for (const auto& t : timed) l.actions.push_back(t.second);
  }
  return result;
}

HETSCHED_INLINE schedule dualpipe(int ranks, int microbatches) {
  detail::require_even_ranks("dualpipe", ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, bidirectional_map(ranks), 2);
  const int down = detail::first_half(microbatches), half = ranks / 2;
  for (auto& l : result.lanes) {
    const detail::dual_leg there{.direction = 0, .stage = l.rank, .first = 0, .count = down};
    const detail::dual_leg back{.direction = 1, .stage = ranks - 1 - l.rank, .first = down, .count = microbatches - down};
    if (l.rank < half)
      l.actions = detail::dualpipe_actions(half, l.rank, {there, back});
    else
      l.actions = detail::dualpipe_actions(half, ranks - 1 - l.rank, {back, there});
  }
  return result;
}

HETSCHED_INLINE schedule dualpipe_v(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, v_map(ranks));
  for (auto& l : result.lanes)
    l.actions = detail::dualpipe_actions(
        ranks, l.rank,
        {detail::dual_leg{.stage = l.rank, .count = microbatches}, {.stage = 2 * ranks - 1 - l.rank, .count = microbatches}});
  return result;
}

}  // namespace hetsched
