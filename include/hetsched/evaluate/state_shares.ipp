// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/questions/parts.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/state_shares.hpp>
#include <hetsched/plan/stage_parts.hpp>

namespace hetsched {

namespace detail {

// Shares of `bytes` for devices that hold `held` of their `room` without them, so that the fullest of all is as empty as can be:
// all that have some are equally full.
[[nodiscard]] inline std::vector<double> filled_evenly(const std::vector<double>& held, const std::vector<double>& room,
                                                       double bytes) {
  std::vector<std::size_t> order(held.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return held[a] / room[a] < held[b] / room[b]; });
  // The emptiest so many share: each gets what it lacks of the level.
  double all_held = 0, all_room = 0, level = 0;
  for (std::size_t n = 0; n < order.size(); ++n) {
    const auto i = order[n];
    if (n > 0 && level <= held[i] / room[i]) break;
    all_held += held[i];
    all_room += room[i];
    level = (all_held + bytes) / all_room;
  }
  std::vector<double> shares;
  for (std::size_t i = 0; i < held.size(); ++i) shares.push_back(std::max(0.0, level * room[i] - held[i]) / bytes);
  return shares;
}

/// state_by_room of one stage, with so many microbatches in flight; empty where nothing is shared out or devices are alike.
[[nodiscard]] inline std::vector<double> state_by_room_of(const cluster& hardware, const costs_by_size& costs_for, stage_plan s,
                                                          int microbatch_size, double in_flight) {
  s.shares.state.clear();
  const auto parts = parts_of(s, microbatch_size, costs_for(microbatch_size).slices());
  if (s.zero < 1 || parts.size() < 2) return {};
  const auto cost = cost_of_parts(costs_for, s.layers, parts);
  std::vector<double> held, room;
  double bytes = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto& own = cost.parts[k];
    const auto all = memory_of(own, cost.overheads[k], in_flight);
    const auto shared_out = static_cast<double>(own.optimizer_bytes + (s.zero >= 2 ? own.gradient_bytes : 0));
    const int data = parts[k].where.degrees.data;
    bytes = shared_out * data;
    // The margin is on all that is held.
    const double margin = 1 + cost.overheads[k].margin;
    const auto capacity = static_cast<double>(subcluster_of(hardware, parts[k].where.mesh).device.memory_bytes);
    held.insert(held.end(), as_size(data), static_cast<double>(all.total()) / margin - shared_out);
    room.insert(room.end(), as_size(data), capacity / margin);
  }
  return bytes > 0 ? filled_evenly(held, room, bytes) : std::vector<double>{};
}

}  // namespace detail

HETSCHED_INLINE outcome<evaluation> with_state_by_room(const cluster& hardware, const costs_by_size& costs_for, evaluation judged,
                                                       const evaluate_options& options) {
  plan p = judged.plan;
  detail::require_evaluated(p, hardware);
  detail::expect_size(judged.pipelines.size(), p.pipelines.size(), "an evaluation", "a pipeline for each of the plan's");
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& stages = judged.pipelines[l].stages;
    detail::expect_size(stages.size(), p.pipelines[l].stages.size(), "an evaluated pipeline", "a stage for each of the plan's");
    for (const auto& s : stages) detail::expect_natural(s.in_flight, "in_flight");
  }
  bool any = false;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l)
    for (std::size_t i = 0; i < p.pipelines[l].stages.size(); ++i) {
      auto& s = p.pipelines[l].stages[i];
      auto shares = detail::state_by_room_of(hardware, costs_for, s, p.pipelines[l].microbatch_size,
                                             judged.pipelines[l].stages[i].in_flight);
      any = any || !shares.empty();
      if (!shares.empty()) s.shares.state = std::move(shares);
    }
  if (!any) return judged;
  auto found = evaluate(hardware, costs_for, std::move(p), options);
  if (!found) return judged;
  return found;
}

}  // namespace hetsched
