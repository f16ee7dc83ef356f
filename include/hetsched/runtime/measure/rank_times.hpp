// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// What a stage took in a step, over all its microbatches.
struct stage_time {
  int direction = 0;
  int stage = 0;
  double forward_s = 0;   ///< and recomputing
  double backward_s = 0;  ///< both halves
  friend bool operator==(const stage_time&, const stage_time&) = default;
};

/// What a rank did in a step: its computations, without the exchange of gradients and the update.
struct rank_times {
  double span_s = 0;                 ///< from its first computation's start to its last one's end
  double computing_s = 0;            ///< in it
  std::vector<stage_time> stages{};  ///< ascending
};

/// The computations of one rank of a timeline, such as pipeline_executor::measured().
/// Complexity: O(actions * stages of the rank).
[[nodiscard]] rank_times times_of_rank(const timeline& t, int rank);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/measure/rank_times.ipp>
#endif
