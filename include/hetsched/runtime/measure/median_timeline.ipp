// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

HETSCHED_INLINE timeline median_timeline(std::span<const timeline> all) {
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

HETSCHED_INLINE std::vector<action_spread> action_spreads(std::span<const timeline> all) {
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
