// SPDX-License-Identifier: Apache-2.0
// The order of work for what stages and links take now.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace train {

/// Whether the order of work may change between steps.
[[nodiscard]] inline bool may_reschedule(const hetsched::training_layout& layout) {
  return std::all_of(layout.pipelines.begin(), layout.pipelines.end(),
                     [](const auto& p) { return p.order.directions == 1 && p.order.stages == p.order.ranks; });
}

/// What is measured of a stage and of the boundary behind it, per microbatch, by medians; as numbers for all ranks.
struct stage_measured {
  double forward_s = 0, backward_s = 0, weight_s = 0, activation_s = 0, gradient_s = 0;
};
inline constexpr std::size_t numbers_per_stage = 5;

/// Of several steps of a pipeline with a stage per rank.
[[nodiscard]] inline std::vector<double> measured_stages(const std::vector<hetsched::timeline>& steps, std::size_t stages) {
  using hetsched::action_kind;
  // By stage, what, and, for tensors that go by way of the hosts, leg.
  constexpr std::size_t legs = 3;
  std::vector<std::vector<std::vector<double>>> took(stages, std::vector<std::vector<double>>(numbers_per_stage * legs));
  for (const auto& step : steps)
    for (const auto& a : hetsched::from_departure(step).actions) {
      const double seconds = a.end_s - a.start_s;
      const auto add = [&](std::size_t stage, std::size_t what, std::size_t leg = 0) {
        took[stage][what * legs + leg].push_back(seconds);
      };
      const auto stage = static_cast<std::size_t>(a.rank);
      if (hetsched::is_compute(a.what.kind)) {
        const bool weight = a.what.kind == action_kind::backward_weight;
        add(stage, a.what.kind == action_kind::forward ? 0 : weight ? 2 : 1);
      } else if (hetsched::is_transfer(a.what.kind) && a.peer >= 0) {
        const bool gradient = hetsched::moves_gradient(a.what.kind);
        const auto leg = hetsched::traits_of(a.what.kind).leg;
        const bool comes = leg == hetsched::transfer_leg::h2d;  // listed where it arrives
        if (a.peer == a.rank + (gradient == comes ? 1 : -1))
          add(static_cast<std::size_t>(std::min(a.rank, a.peer)), gradient ? 4 : 3,
              comes                                ? 2
              : leg == hetsched::transfer_leg::d2h ? 1
                                                   : 0);
      }
    }
  std::vector<double> numbers;
  for (auto& of_stage : took)
    for (std::size_t k = 0; k < of_stage.size(); k += legs) {
      double all = 0;  // one leg after the other
      for (std::size_t leg = 0; leg < legs; ++leg)
        if (auto& times = of_stage[k + leg]; !times.empty()) all += hetsched::median_and_spread(std::move(times)).median_s;
      numbers.push_back(all);
    }
  return numbers;
}

/// A pipeline as planned, with these times in place of the planned ones.
[[nodiscard]] inline hetsched::pipeline_plan with_measured(hetsched::pipeline_plan line, const double* numbers) {
  for (std::size_t s = 0; s < line.stages.size(); ++s) {
    const double* const n = numbers + s * numbers_per_stage;
    auto& cost = line.stages[s].cost;
    const double share = cost.backward_s > 0 ? cost.weight_backward_s / cost.backward_s : 0.5;
    cost.forward_s = n[0];
    cost.backward_s = n[1] + n[2];
    cost.weight_backward_s = n[2] > 0 ? n[2] : share * cost.backward_s;
    if (s >= line.boundaries.size()) continue;
    auto& b = line.boundaries[s];
    b.forward_s = n[3];
    b.backward_s = n[4];
    b.forward_occupied_s = b.backward_occupied_s = std::nullopt;
  }
  return line;
}

struct new_orders {
  std::vector<hetsched::schedule> orders;
  double now_s = 0, then_s = 0;  ///< the longest pipeline, as played for what is measured
};

/// What `auto` finds for a pipeline's times, within the memory of the plan, or the order that it has; `now`: none if the pipeline
/// is to be another one.
inline void add_order(new_orders& found, hetsched::pipeline_plan line, const hetsched::schedule* now) {
  line.schedule = {.name = std::string(hetsched::auto_schedule_name), .actions = {}};
  for (auto& s : line.stages) s.warmup = 0;
  const auto times = hetsched::to_pipeline(line);
  const auto order = hetsched::order_of(line, hetsched::activation_rooms(line));
  if (order)
    found.orders.push_back(order->order);
  else if (now)
    found.orders.push_back(*now);
  else
    found.then_s = hetsched::infinity;
  if (now) found.now_s = std::max(found.now_s, hetsched::simulate(times, *now).makespan_s);
  if (order || now) found.then_s = std::max(found.then_s, hetsched::simulate(times, found.orders.back()).makespan_s);
}

/// What `auto` finds for what is measured, within the memory of the plan. The same on all ranks for the same numbers.
[[nodiscard]] inline new_orders solve_again(const hetsched::plan& p, const std::vector<hetsched::schedule>& orders,
                                            const std::vector<double>& numbers) {
  new_orders found;
  std::size_t first = 0;
  for (std::size_t i = 0; i < p.pipelines.size(); ++i) {
    add_order(found, with_measured(p.pipelines[i], numbers.data() + first), &orders[i]);
    first += numbers_per_stage * p.pipelines[i].stages.size();
  }
  return found;
}

}  // namespace train
