// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/schedule/action.hpp>
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
[[nodiscard]] inline timeline median_timeline(std::span<const timeline> all) {
  if (all.empty()) throw input_error("there is no iteration to take the median of");
  timeline typical = all.front();
  if (all.size() == 1) return typical;
  struct moments {
    std::vector<double> starts, ends;
  };
  std::map<decltype(detail::key_of(timed_action{})), moments> found;
  for (const auto& t : all)
    for (const auto& a : t.actions) {
      auto& m = found[detail::key_of(a)];
      m.starts.push_back(a.start_s);
      m.ends.push_back(a.end_s);
    }
  for (auto& a : typical.actions) {
    auto& m = found[detail::key_of(a)];
    if (m.starts.size() != all.size()) throw input_error("iterations with other actions have no median");
    a.start_s = median_and_spread(std::move(m.starts)).median_s;
    a.end_s = median_and_spread(std::move(m.ends)).median_s;
  }
  if (found.size() != typical.actions.size()) throw input_error("iterations with other actions have no median");
  return typical;
}

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
[[nodiscard]] inline std::vector<action_spread> action_spreads(std::span<const timeline> all) {
  std::map<std::tuple<action_kind, int, int>, std::vector<double>> took;
  for (const auto& t : all)
    for (const auto& a : t.actions)
      took[{a.what.kind, static_cast<int>(a.what.direction), a.what.stage}].push_back(a.end_s - a.start_s);
  std::vector<action_spread> found;
  for (auto& [key, times] : took)
    found.push_back({.kind = std::get<0>(key),
                     .direction = std::get<1>(key),
                     .stage = std::get<2>(key),
                     .count = times.size(),
                     .took = median_and_spread(std::move(times))});
  return found;
}

}  // namespace hetsched
