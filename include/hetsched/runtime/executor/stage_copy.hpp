// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

/// A virtual stage on a rank.
struct stage_copy {
  int direction = 0;
  int stage = 0;
  friend constexpr bool operator==(const stage_copy&, const stage_copy&) = default;
};

/// The virtual stages of a rank, by direction, then by stage.
/// Complexity: O(directions * stages).
[[nodiscard]] inline std::vector<stage_copy> stages_of_rank(const schedule& order, int rank) {
  std::vector<stage_copy> found;
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s < order.stages; ++s)
      if (order.rank(c, s) == rank) found.push_back({c, s});
  return found;
}

/// The microbatches of a stage in the order in which their gradients are added up: that of its backwards, or of its
/// backward_weights where the backward is split and the layers can do that. In the library's schedules it is 0, 1, 2 ... in
/// each direction, over the microbatches that pass it.
/// Complexity: O(actions of the rank).
[[nodiscard]] inline std::vector<int> gradient_order(const schedule& order, int direction, int stage, bool split_layers = true) {
  std::vector<int> microbatches;
  const auto deferred = split_layers ? action_kind::backward_weight : action_kind::backward_input;
  for (const auto& a : order.lanes[static_cast<std::size_t>(order.rank(direction, stage))].actions)
    if (a.direction == direction && a.stage == stage && (a.kind == action_kind::backward || a.kind == deferred))
      microbatches.push_back(a.microbatch);
  return microbatches;
}

}  // namespace hetsched
