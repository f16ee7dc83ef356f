// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>
#include <hetsched/plan/objective.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/schedule_id.hpp>

namespace hetsched {

/// Uneven parts of a stage's axes, adding up to 1 on each; empty: equal parts. `state`: per data rank, of what ZeRO shares out.
struct axis_shares {
  std::vector<double> data = {};
  std::vector<double> context = {};
  std::vector<double> tensor = {};
  std::vector<double> state = {};
  friend bool operator==(const axis_shares&, const axis_shares&) = default;
};

/// One stage of a plan. What stands below `warmup` is filled in by evaluate.
struct stage_plan {
  layer_range layers{};
  std::vector<device_group> devices{};
  hetsched::degrees degrees{};
  axis_shares shares{};
  recomputation recompute = recomputation::none;
  int zero = 0;    ///< ZeRO stage
  int warmup = 0;  ///< forwards started before the first backward; 0: as the schedule's rule has it
  stage_cost cost{};
  memory_overheads overheads{};
  double update_s = 0;  ///< once per iteration: gradient reduction inside the stage and optimizer step
  bytes_t memory_bytes = 0;
  bytes_t memory_capacity_bytes = 0;

  /// The stage as a cost model is asked for it, shares aside.
  /// Throws: input_error as shape_of.
  [[nodiscard]] placement where() const {
    return {.mesh = shape_of(devices), .degrees = degrees, .recompute = recompute, .zero = zero};
  }
  friend bool operator==(const stage_plan&, const stage_plan&) = default;
};

/// A boundary between two stages, per microbatch; filled in by evaluate.
struct boundary_plan {
  bytes_t bytes = 0;  ///< of the activation
  double forward_s = 0;
  double backward_s = 0;
  bytes_t extra_bytes = 0;                         ///< on each device of either side meanwhile
  std::string reshard = {};                        ///< strategy
  std::optional<double> forward_occupied_s = {};   ///< as of transfer_cost; none: all of forward_s
  std::optional<double> backward_occupied_s = {};  ///< none: all of backward_s
  friend bool operator==(const boundary_plan&, const boundary_plan&) = default;
};

/// A schedule by name, and by its actions where the name and the warm-ups do not tell them.
struct schedule_plan {
  std::string name = {};  ///< as in the commands: h1f1b, exact_1f1b, auto, ...
  std::optional<schedule> actions = {};
  friend bool operator==(const schedule_plan&, const schedule_plan&) = default;
};

/// The schedule of that name; none if it is one of the caller's own, for its actions.
[[nodiscard]] inline std::optional<schedule_id> id_of(const schedule_plan& s) { return find_schedule_id(s.name); }

/// Gradients of parameters that layers of two stages share, added up between these once per iteration; filled in by evaluate.
struct copy_sync_plan {
  int owner = 0;  ///< layer
  int layer = 0;  ///< that holds a copy
  bytes_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const copy_sync_plan&, const copy_sync_plan&) = default;
};

/// Ordered stages that train one share of the batch.
struct pipeline_plan {
  int microbatches = 1;
  int microbatch_size = 1;  ///< samples, of all replicas of a stage together
  std::vector<stage_plan> stages = {};
  std::vector<boundary_plan> boundaries = {};  ///< stages - 1, or none before evaluate
  std::vector<copy_sync_plan> copy_sync = {};
  schedule_plan schedule = {};
  friend bool operator==(const pipeline_plan&, const pipeline_plan&) = default;
};

/// Gradients of layers that several pipelines hold, added up once per iteration; filled in by evaluate.
struct gradient_sync_plan {
  layer_range layers{};
  std::vector<int> pipelines = {};  ///< positions in plan::pipelines
  bytes_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const gradient_sync_plan&, const gradient_sync_plan&) = default;
};

/// What a plan is expected to do.
struct prediction {
  double iteration_s = 0;    ///< simulated makespan, gradient reduction and optimizer step included
  double lower_bound_s = 0;  ///< no order of the schedules' actions on these stages and links can be faster
  double samples_per_s = 0;
  double mfu = 0;           ///< model FLOPs per second over the peak of the devices in use
  double load_balance = 0;  ///< HARP Eq. 20, over the devices in use
  double period_s = 0;      ///< seconds per microbatch once the pipelines are full
  /// Money for the devices in use, or for all of their nodes where these have a price; none unless all have one.
  std::optional<double> cost_per_sample = {};
  friend bool operator==(const prediction&, const prediction&) = default;
};

/// How a plan was found, and how good it is known to be, in the terms of its planner's objective.
struct search_evidence {
  double objective_value = 0;  ///< of this plan
  /// No plan of the space has a smaller objective, under any schedule that leaves forwards and backwards of a stage whole.
  double objective_bound = 0;
  /// The bound is within the gap that was asked for, of the plan or of one to beat; or all plans of a small problem were judged,
  /// under all warm-up rules.
  bool complete = false;
  /// What the search did, by name and count.
  std::vector<std::pair<std::string, std::int64_t>> work = {};
  /// No plan of the space has less latency + (M - 1) periods + end under the warm-up rule `rule`, which is what many searches go
  /// by, and neither bounds the iteration nor is bounded by it (under the objective cost, what that costs); 0 where that is not
  /// known.
  double sum_bound = 0;
  std::string rule = {};
  std::string space = {};  ///< in words: which plans the bounds speak of
  bool stopped = false;    ///< the search was ended before its end, by a budget or a signal, say
  friend bool operator==(const search_evidence&, const search_evidence&) = default;
};

/// What the costs of a plan were computed for, as whoever asked for the plan named it; empty or 0 where unknown.
struct plan_setting {
  struct anchored_subcluster {
    std::string name;
    double speed = 1;                                ///< device::speed
    std::array<double, 3> class_speeds = {1, 1, 1};  ///< device::class_speeds
    friend bool operator==(const anchored_subcluster&, const anchored_subcluster&) = default;
  };
  std::string costs = {};        ///< cost model
  std::string granularity = {};  ///< how the model was cut into layers
  int sequence = 0;              ///< tokens per sample
  std::string precision = {};
  std::string attention = {};                      ///< kernels
  std::vector<std::string> whole_layers = {};      ///< subclusters whose devices were priced by whole layers, not by operators
  std::optional<training_stack> stack = {};        ///< of the trainer that is to run the plan
  std::vector<anchored_subcluster> anchored = {};  ///< whose devices were priced as fast as they were seen to be
  std::string target = {};                         ///< name of the one that it was searched for
  int further_tokens = 0;                          ///< transformer::further_tokens
  friend bool operator==(const plan_setting&, const plan_setting&) = default;
};

/// Who computes what in training, and when. Those who serve requests: inference_plan.
struct plan {
  std::string planner = {};
  plan_objective objective = plan_objective::iteration;  ///< or cost
  std::vector<pipeline_plan> pipelines = {};
  std::vector<gradient_sync_plan> gradient_sync = {};
  plan_setting setting = {};
  prediction predicted = {};
  std::optional<search_evidence> evidence = {};
  friend bool operator==(const plan&, const plan&) = default;
};

namespace detail {
/// Throws: input_error for an objective of inference.
void expect_training(plan_objective objective);
}  // namespace detail

/// What a plan is worth under its objective: smaller is better.
/// Throws: input_error for an objective of inference, and for cost without prices of the plan's devices.
[[nodiscard]] double objective_of(const plan& p);

/// Microbatches of all pipelines together, per iteration.
/// Throws: input_error for less than one microbatch in a pipeline, and for more than an int counts.
[[nodiscard]] int microbatch_count(const plan& p);

/// Samples of all pipelines together, per iteration.
/// Throws: input_error for less than one microbatch or sample of it in a pipeline, and for more than 64 bits count.
[[nodiscard]] std::int64_t sample_count(const plan& p);

/// The bare times of a pipeline of a plan, as they are there: validate(pipeline) tells whether they make one.
[[nodiscard]] pipeline to_pipeline(const pipeline_plan& p);

/// The position of the stage that has a layer.
/// Throws: input_error if none has.
[[nodiscard]] std::size_t stage_with(const pipeline_plan& p, int layer);

/// The warm-up counts of a pipeline of a plan.
[[nodiscard]] inline std::vector<int> warmups(const pipeline_plan& p) {
  std::vector<int> counts;
  for (const auto& s : p.stages) counts.push_back(s.warmup);
  return counts;
}

/// Bytes that overheads and everything but activations leave of a stage's devices; not below 0.
/// Throws: input_error for overheads out of range, and unless capacity and costs are at least 0 bytes.
[[nodiscard]] inline double activation_room(const stage_plan& s) {
  detail::expect_count(s.memory_capacity_bytes, "memory_capacity_bytes", 0);
  detail::expect_count(s.cost.weight_bytes, "weight_bytes", 0);
  detail::expect_count(s.cost.temporary_bytes, "temporary_bytes", 0);
  validate(s.overheads);
  const auto [room, scale] = room_within(s.memory_capacity_bytes, s.overheads);
  return std::max(0.0, (room - static_cast<double>(s.cost.weight_bytes)) / scale - static_cast<double>(s.cost.temporary_bytes));
}

/// The same of every stage; empty unless the plan tells weights, activations and capacity of each.
/// Throws: as activation_room.
[[nodiscard]] std::vector<double> activation_rooms(const pipeline_plan& p);

/// Whether each boundary between stages lies between subclusters; those of a stage on devices of several do.
/// Throws: input_error for a stage without devices.
[[nodiscard]] std::vector<bool> subcluster_boundaries(const pipeline_plan& p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/plan.ipp>
#endif
