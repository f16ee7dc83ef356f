// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategy.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// A stage of a schedule, in either direction.
struct stage_layout {
  layer_range layers{};
  reshard_strategy reshard = reshard_strategy::direct;  ///< how tensors travel to the stage behind it, if there is one
  friend bool operator==(const stage_layout&, const stage_layout&) = default;
};

/// A rank of a schedule, which is a stage of the plan: a group of devices, and what they do with all stages that it has.
struct group_layout {
  hetsched::degrees degrees{};
  /// Where the data ranks' samples of a microbatch begin, and where the last one's end; empty: equally many each.
  std::vector<std::int64_t> sample_points{};
  /// What layers compute again before a backward. Full: they keep their inputs only. Selective is left to them.
  recomputation recompute = recomputation::none;
  /// What data ranks share out: from 1 on the optimizer's state, from 2 on also gradients, once they are summed, at 3 also
  /// parameters, which each layer gathers to work with them.
  int zero = 0;
  /// The data ranks' shares of that, as memory has room for it; empty: equal. A data rank may have none.
  std::vector<double> state_shares{};
  /// The tensor ranks' shares of heads and columns, which layers turn into whole ones; empty: equal.
  std::vector<double> tensor_shares{};
  friend bool operator==(const group_layout&, const group_layout&) = default;
};

/// The ranks that train one share of the batch together, a rank per device. A rank of the schedule is a group of them, with data
/// outermost and tensor innermost; groups follow each other from first_rank on.
struct pipeline_layout {
  schedule order;
  std::vector<stage_layout> stages;  ///< of the schedule
  int first_rank = 0;
  int microbatch_size = 1;             ///< samples per microbatch, of all data ranks together
  std::vector<group_layout> groups{};  ///< of each rank of the schedule; empty: one device each

  [[nodiscard]] const group_layout& group(int schedule_rank) const;
  [[nodiscard]] const degrees& degrees_of(int schedule_rank) const { return group(schedule_rank).degrees; }
  /// The first rank of a group. O(groups before).
  [[nodiscard]] int first_of_group(int schedule_rank) const;
  [[nodiscard]] int ranks() const { return first_of_group(order.ranks) - first_rank; }
  /// The samples of a microbatch that a data rank of a group has.
  [[nodiscard]] interval samples_of(int schedule_rank, int data) const;
  /// How much of a microbatch they are.
  [[nodiscard]] double share_of(int schedule_rank, int data) const {
    return static_cast<double>(samples_of(schedule_rank, data).size()) / microbatch_size;
  }
  friend bool operator==(const pipeline_layout&, const pipeline_layout&) = default;
};

/// Where a rank works.
struct rank_place {
  int pipeline = 0;
  int group = 0;  ///< rank of the pipeline's schedule
  int data = 0, context = 0, tensor = 0;
  friend constexpr bool operator==(const rank_place&, const rank_place&) = default;
};

/// Who computes which layers, and when.
struct training_layout {
  int layers = 0;
  std::vector<pipeline_layout> pipelines;

  [[nodiscard]] int ranks() const;
  /// The pipeline that a rank works in; the number of pipelines if there is none.
  [[nodiscard]] int pipeline_of(int rank) const;
  /// Requires: a rank of the training.
  [[nodiscard]] rank_place place_of(int rank) const;
  friend bool operator==(const training_layout&, const training_layout&) = default;
};

/// Per rank how much of what ZeRO shares out it is to have, beside 1 of those that share equally; empty where all do.
[[nodiscard]] std::vector<double> room_of_ranks(const training_layout& t);

/// Checks that every pipeline has every layer once, in order, with at least one per stage, and that every rank is in one
/// pipeline. Does not look at what the schedules list.
/// Throws: input_error if not.
/// Complexity: O(stages + ranks).
void validate(const training_layout& t);

namespace detail {

/// Stages of contiguous layers, one per weight, as near to the weights' shares as whole layers can be, and none empty.
[[nodiscard]] std::vector<stage_layout> cut_layers(int layers, const std::vector<double>& weights);

}  // namespace detail

/// The same layers on the same ranks in other orders of work, one for each pipeline: for example as `auto` finds them for what
/// stages and links take now.
/// Throws: input_error, naming the pipeline, unless each has the stages, ranks and microbatches of the one before, a stage per
/// rank and one direction.
[[nodiscard]] training_layout with_schedules(training_layout t, const std::vector<schedule>& orders);

/// One pipeline without a plan: every stage of the schedule gets equally many layers, or one more.
/// Throws: input_error for fewer layers than stages.
[[nodiscard]] training_layout even_layout(int layers, schedule order, int microbatch_size = 1);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/training_layout.ipp>
#endif
