// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/predict.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/min_memory.hpp>
#include <hetsched/schedule/named.hpp>
#include <hetsched/schedule/simulate.hpp>

namespace hetsched {

/// A plan whose one pipeline runs under another schedule than the planner's, with that schedule.
struct scheduled_plan {
  hetsched::plan plan;
  schedule order;
};

/// Hands the stages of a plan to a schedule by name: "auto" (auto_with_little_memory, of what the weights leave) or any that
/// build_schedule knows. Weight gradients are split off where the cost model tells their time. Warm-ups, memory and prediction
/// become those of the schedule: the iteration is simulated, gradient reduction and optimizer step included. Schedules with
/// several virtual stages per rank are predicted as if each stage could be cut into equal parts; ranks of bidirectional ones
/// hold two stages' weights, and the reduction between the copies is not in the prediction. Refused if the schedule does
/// not fit in memory. Throws input_error for a plan of several pipelines and where build_schedule does.
template <stage_cost_model Costs>
[[nodiscard]] outcome<scheduled_plan> with_schedule(const cluster& hardware, const Costs& costs, plan p, std::string_view name,
                                                    build_options options = {}, precision arithmetic = precision::fp16) {
  if (p.pipelines.size() != 1)
    throw input_error("a plan of " + std::to_string(p.pipelines.size()) + " pipelines has no single schedule");
  auto& pipe = p.pipelines.front();
  for (auto& s : pipe.stages) {
    const stage_cost cost = cost_of::stage(costs, s.layers, s.where);
    s.weight_backward_s = cost.weight_backward_s;
    s.activation_bytes = cost.activation_bytes;
    s.weight_bytes = cost.weight_bytes;
  }
  const auto bare = to_pipeline(pipe);
  const auto capacities = activation_capacities(pipe);

  schedule order;
  double bound_s = 0;
  if (name == "auto") {
    auto found = auto_with_little_memory(bare, pipe.microbatches, {.memory_capacity = capacities});
    if (!found) return found.why_not();
    order = std::move(found->order);
    bound_s = found->lower_bound_s;
  } else {
    if (options.cross.empty()) options.cross = subcluster_boundaries(pipe);
    order = build_schedule(name, bare, pipe.microbatches, options);
  }
  const auto work = make_workload(bare, order);
  const auto played = simulate(work, order, {.timeline = false});
  // Ranks of a bidirectional schedule hold a stage per direction.
  std::vector<bytes_t> weight_bytes(pipe.stages.size());
  for (int c = 0; c < order.replicas; ++c)
    for (std::size_t i = 0; i < pipe.stages.size(); ++i) {
      const auto rank = order.replicas == 1 ? i : static_cast<std::size_t>(order.rank(c, static_cast<int>(i)));
      weight_bytes[rank] = checked_add(weight_bytes[rank], pipe.stages[i].weight_bytes);
    }
  for (std::size_t i = 0; i < pipe.stages.size(); ++i) {
    auto& s = pipe.stages[i];
    // Shares of an activation add up to a little more or less than the whole.
    const double activations = std::ceil(played.peak_memory_bytes[i] - 0.01);
    s.memory_bytes = checked_add(weight_bytes[i], static_cast<bytes_t>(activations));
    if (activations > static_cast<double>(s.memory_capacity_bytes - weight_bytes[i]) * (1 + detail::memory_rounding))
      return refusal{.why = refusal::kind::infeasible,
                     .reason = "schedule " + std::string(name) + " takes " + std::to_string(s.memory_bytes) + " bytes on stage " +
                               std::to_string(i) + ", " + std::to_string(weight_bytes[i]) +
                               " of them for weights; its devices have " + std::to_string(s.memory_capacity_bytes)};
  }

  p.schedule = std::string(name);
  const auto counts = warmup_counts(order);
  p.predicted.iteration_s = 0;
  for (std::size_t i = 0; i < pipe.stages.size(); ++i) {
    auto& s = pipe.stages[i];
    s.warmup = counts[i];
    p.predicted.iteration_s = std::max(p.predicted.iteration_s, played.rank_end_s[i] + s.update_s);
  }
  p.predicted.lower_bound_s = std::max(bound_s, makespan_lower_bound(work, order));
  p.predicted.period_s = played.period_s;
  p.predicted.load_balance = load_balance(hardware, pipe, arithmetic);
  p.predicted.samples_per_s =
      p.predicted.iteration_s > 0 ? pipe.microbatches * static_cast<double>(pipe.microbatch_size) / p.predicted.iteration_s : 0;
  return scheduled_plan{.plan = std::move(p), .order = std::move(order)};
}

}  // namespace hetsched
