// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/placement.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// One stage of a plan. Times are per microbatch, bytes per device.
struct stage_plan {
  layer_range layers;
  placement where;
  int first_device = 0;  ///< in the subcluster, counted node by node; the stage takes consecutive devices
  int warmup = 1;        ///< forwards started before the first backward
  double forward_s = 0;
  double backward_s = 0;
  double transfer_s = 0;  ///< to the next stage, one way; 0 for the last stage
  double update_s = 0;    ///< once per iteration: gradient reduction and optimizer step
  bytes_t memory_bytes = 0;
  bytes_t memory_capacity_bytes = 0;
  // What the planner's own schedules do not ask for; 0 unless the stages were handed to a schedule by name (with_schedule).
  double weight_backward_s = 0;  ///< of backward_s, the weight gradients
  bytes_t weight_bytes = 0;      ///< held whatever the schedule
  bytes_t activation_bytes = 0;  ///< held per microbatch in flight
  friend bool operator==(const stage_plan&, const stage_plan&) = default;
};

/// Ordered stages that train one share of the batch.
struct pipeline_plan {
  int microbatches = 1;
  int microbatch_size = 1;
  std::vector<stage_plan> stages;
  friend bool operator==(const pipeline_plan&, const pipeline_plan&) = default;
};

/// What a plan is expected to do.
struct prediction {
  double iteration_s = 0;    ///< simulated makespan, gradient reduction and optimizer step included
  double lower_bound_s = 0;  ///< no order of the schedule's actions on these stages and links can be faster
  double samples_per_s = 0;
  double mfu = 0;           ///< model FLOPs per second over the peak of the devices in use
  double load_balance = 0;  ///< HARP Eq. 20, over the devices in use
  double period_s = 0;      ///< seconds per microbatch once the pipeline is full
  friend bool operator==(const prediction&, const prediction&) = default;
};

/// How the plan was found, and how good it is known to be.
struct search_evidence {
  double objective_s = 0;        ///< sum (t + 2c) + (M - 1) * period of this plan, the planner's objective
  double objective_bound_s = 0;  ///< no plan has a smaller objective
  bool complete = false;         ///< the search ended by itself: the bound is a proof, not a budget
  std::int64_t evaluations = 0;  ///< dynamic programs solved
  std::int64_t labels = 0;       ///< partial plans kept
  friend bool operator==(const search_evidence&, const search_evidence&) = default;
};

/// Who computes what, and when.
struct plan {
  std::string planner;
  int microbatches = 0;  ///< of all pipelines together
  std::vector<pipeline_plan> pipelines;
  std::string schedule;  ///< name as in the commands: h1f1b, exact_1f1b, ...
  prediction predicted;
  search_evidence evidence;
  friend bool operator==(const plan&, const plan&) = default;
};

/// The bare times of a pipeline of a plan.
[[nodiscard]] inline pipeline to_pipeline(const pipeline_plan& p) {
  pipeline bare;
  for (const auto& s : p.stages) {
    bare.forward_s.push_back(s.forward_s);
    bare.backward_s.push_back(s.backward_s);
    bare.transfer_s.push_back(s.transfer_s);
  }
  if (!bare.transfer_s.empty()) bare.transfer_s.pop_back();
  const auto any = [&](auto field) {
    return std::any_of(p.stages.begin(), p.stages.end(), [&](const auto& s) { return s.*field > 0; });
  };
  if (any(&stage_plan::weight_backward_s))
    for (const auto& s : p.stages) bare.weight_backward_s.push_back(s.weight_backward_s);
  if (any(&stage_plan::activation_bytes))
    for (const auto& s : p.stages) bare.activation_bytes.push_back(static_cast<double>(s.activation_bytes));
  return bare;
}

/// The warm-up counts of a pipeline of a plan.
[[nodiscard]] inline std::vector<int> warmups(const pipeline_plan& p) {
  std::vector<int> counts;
  for (const auto& s : p.stages) counts.push_back(s.warmup);
  return counts;
}

/// The memory that each stage has for activations: what its weights leave of its device. In bytes.
[[nodiscard]] inline std::vector<double> activation_capacities(const pipeline_plan& p) {
  std::vector<double> capacities;
  for (const auto& s : p.stages) capacities.push_back(static_cast<double>(s.memory_capacity_bytes - s.weight_bytes));
  return capacities;
}

/// Whether each boundary between stages lies between subclusters.
[[nodiscard]] inline std::vector<bool> subcluster_boundaries(const pipeline_plan& p) {
  std::vector<bool> cross;
  for (std::size_t i = 0; i + 1 < p.stages.size(); ++i)
    cross.push_back(p.stages[i].where.mesh.subcluster != p.stages[i + 1].where.mesh.subcluster);
  return cross;
}

}  // namespace hetsched
