// SPDX-License-Identifier: Apache-2.0
// What a training's last steps took, as timelines of all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/runtime/communicator/clock_offset.hpp>
#include <hetsched/runtime/executor/measured.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/timeline.hpp>

#include <train/place.hpp>

namespace train {

inline constexpr std::size_t numbers_per_action = 9;

/// A timeline as numbers that can be gathered, and back.
[[nodiscard]] inline std::vector<double> to_numbers(const hetsched::timeline& t) {
  std::vector<double> numbers;
  for (const auto& a : t.actions)
    numbers.insert(numbers.end(),
                   {static_cast<double>(a.what.kind), a.what.joined ? 1.0 : 0.0, static_cast<double>(a.what.direction),
                    static_cast<double>(a.what.stage), static_cast<double>(a.what.microbatch), static_cast<double>(a.rank),
                    static_cast<double>(a.peer), a.start_s, a.end_s});
  return numbers;
}
[[nodiscard]] inline hetsched::timeline from_numbers(std::span<const double> numbers, int ranks, int microbatches) {
  hetsched::timeline t{.ranks = ranks, .microbatches = microbatches, .actions = {}};
  for (std::size_t i = 0; i + numbers_per_action <= numbers.size(); i += numbers_per_action) {
    const auto n = numbers.subspan(i);
    t.actions.push_back({.what = {.kind = static_cast<hetsched::action_kind>(n[0]),
                                  .joined = n[1] != 0,
                                  .direction = static_cast<std::int16_t>(n[2]),
                                  .stage = static_cast<int>(n[3]),
                                  .microbatch = static_cast<int>(n[4])},
                         .rank = static_cast<int>(n[5]),
                         .peer = static_cast<int>(n[6]),
                         .start_s = n[7],
                         .end_s = n[8]});
  }
  return t;
}

/// What the ranks have measured in some steps, by pipeline and step, told by the first device of each group, from 0 at the first
/// action of any; on clocks that differ, as rank 0 saw it. All ranks call it, for the same steps.
[[nodiscard]] inline std::vector<std::vector<hetsched::timeline>> gather_timelines(control comm,
                                                                                   const hetsched::training_layout& layout,
                                                                                   std::span<const hetsched::timeline> steps,
                                                                                   bool one_clock, double deadline_s) {
  std::vector<hetsched::clock_offset> offsets(static_cast<std::size_t>(comm.ranks()));
  if (!one_clock) {
    offsets = hetsched::clock_offsets(comm, hetsched::deadline_in(deadline_s));
    offsets.resize(static_cast<std::size_t>(comm.ranks()));
  }
  std::vector<std::vector<hetsched::timeline>> found(layout.pipelines.size());
  for (const auto& mine : steps) {
    const auto all = gather(comm, to_numbers(mine), deadline_s, "timelines");
    std::vector<std::vector<hetsched::timeline>> parts(layout.pipelines.size());
    double first_s = hetsched::infinity;
    for (int r = 0; r < comm.ranks(); ++r) {
      const auto place = layout.place_of(r);
      const auto p = static_cast<std::size_t>(place.pipeline);
      if (layout.pipelines[p].first_of_group(place.group) != r) continue;
      const auto& order = layout.pipelines[p].order;
      auto part = from_numbers(all[static_cast<std::size_t>(r)], order.ranks, order.microbatches);
      // Clocks of one host are one: an offset within its error is none.
      const auto& offset = offsets[static_cast<std::size_t>(r)];
      if (std::abs(offset.seconds) > offset.error_s) hetsched::shift(part, offset.seconds);
      for (const auto& a : part.actions)
        if (!hetsched::detail::is_receive(a.what.kind)) first_s = std::min(first_s, a.start_s);
      parts[p].push_back(std::move(part));
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      double own_s = hetsched::infinity;
      for (const auto& one : parts[p])
        for (const auto& a : one.actions)
          if (!hetsched::detail::is_receive(a.what.kind)) own_s = std::min(own_s, a.start_s);
      found[p].push_back(hetsched::merged(parts[p]));
      if (own_s > first_s) hetsched::shift(found[p].back(), own_s - first_s);
    }
  }
  return found;
}

/// The CSV of what actions took, by pipeline.
[[nodiscard]] inline std::string times_csv(const std::vector<std::vector<hetsched::action_spread>>& pipelines) {
  std::string text = "pipeline,stage,direction,action,count,median_s,spread_s\n";
  for (std::size_t p = 0; p < pipelines.size(); ++p)
    for (const auto& a : pipelines[p])
      text += std::to_string(p) + ',' + std::to_string(a.stage) + ',' + std::to_string(a.direction) + ',' +
              std::string(hetsched::detail::kind_names[static_cast<std::size_t>(a.kind)]) + ',' + std::to_string(a.count) + ',' +
              nlohmann::json(a.took.median_s).dump() + ',' + nlohmann::json(a.took.spread_s).dump() + '\n';
  return text;
}

}  // namespace train
