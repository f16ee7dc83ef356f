// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <vector>

#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

/// A rank among those of the groups of a schedule.
struct group_member {
  int group = 0;           ///< rank of the schedule
  int index = 0;           ///< in its group
  std::vector<int> first;  ///< of each group: a rank of the communicator
};

/// `first_rank`: of the communicator, the first device of the schedule.
/// Throws: input_error for groups that do not fit the schedule or the communicator, or do not have this rank.
[[nodiscard]] group_member find_group(const schedule& order, const pipeline_groups& groups, int rank, int ranks, int first_rank);

/// What a rank's stages take and make: shapes by their numbers among `made`, which grows.
/// Requires: a sound schedule and a boundary for each two stages and direction.
/// Throws: input_error for any rank's layouts that are for other numbers of devices than the groups have, and for this one's
/// transfers that cannot be run, or two layouts of a tensor that stays.
[[nodiscard]] stage_shapes shapes_of_stages(const schedule& order, const pipeline_groups& groups, const group_member& me,
                                            std::vector<tensor_shape>& made);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/group_member.ipp>
#endif
