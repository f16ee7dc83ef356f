// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

namespace detail {

[[nodiscard]] inline auto key_of(const timed_action& a) {
  return std::tuple(a.rank, a.peer, a.what.kind, a.what.direction, a.what.stage, a.what.microbatch);
}

}  // namespace detail

/// The typical one of several measured iterations of one schedule: each action begins and ends at the median of its moments. What
/// came before something else in all of them does so here.
/// Throws: input_error if they have not the same actions, or if there are none.
/// Complexity: O(n log n) in the number of all actions.
[[nodiscard]] timeline median_timeline(std::span<const timeline> all);

/// What one kind of action of a stage took.
struct action_spread {
  action_kind kind{};
  int direction = 0;
  int stage = 0;
  std::size_t count = 0;
  measured_time took;
};

/// By kind, direction and stage, in this order, over all microbatches of all iterations.
/// Complexity: O(n log n) in the number of actions.
[[nodiscard]] std::vector<action_spread> action_spreads(std::span<const timeline> all);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/measure/median_timeline.ipp>
#endif
