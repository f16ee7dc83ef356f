// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/views.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched::views {
inline namespace HETSCHED_VIEWS_KIND {

/// What a rank does in an iteration, in the order of the timeline: computations, then transfers.
/// Requires: actions in the order of their ranks, as all of the library's timelines have them.
/// Complexity: O(log actions).
[[nodiscard]] inline std::span<const timed_action> actions_of(const timeline& t, int rank) {
  const auto found = std::ranges::equal_range(t.actions, rank, {}, &timed_action::rank);
  return {found.begin(), found.end()};
}
void actions_of(const timeline&&, int) = delete;

/// Actions of a timeline or of a rank by their starts; those that start together by their ends, else as they stand.
/// Returns: references, sorted at once.
/// Complexity: O(actions log actions).
[[nodiscard]] inline std::vector<std::reference_wrapper<const timed_action>> in_time_order(
    std::span<const timed_action> actions) {
  std::vector<std::reference_wrapper<const timed_action>> order(actions.begin(), actions.end());
  std::ranges::stable_sort(order, {}, [](const timed_action& a) { return std::pair(a.start_s, a.end_s); });
  return order;
}
[[nodiscard]] inline auto in_time_order(const timeline& t) { return in_time_order(std::span<const timed_action>(t.actions)); }
void in_time_order(const timeline&&) = delete;

/// The microbatches of a rank's forwards, in the order of its schedule; one that comes through several of its stages as often.
/// Requires: 0 <= rank < order.ranks.
template <shown<schedule> Schedule>
[[nodiscard]] auto microbatches_of(Schedule& order, int rank) {
  return at(order.lanes, rank).actions | filter([](const action& a) { return a.kind == action_kind::forward; }) |
         transform(&action::microbatch);
}

}  // namespace HETSCHED_VIEWS_KIND
}  // namespace hetsched::views
