// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <vector>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// A virtual stage on a rank.
struct stage_copy {
  int direction = 0;
  int stage = 0;
  friend constexpr bool operator==(const stage_copy&, const stage_copy&) = default;
};

/// The virtual stages of a rank, by direction, then by stage.
/// Complexity: O(directions * stages).
[[nodiscard]] std::vector<stage_copy> stages_of_rank(const schedule& order, int rank);

/// The microbatches of a stage in the order in which their gradients are added up: that of its backwards, or of its
/// backward_weights where the backward is split and the layers can do that. In the library's schedules it is 0, 1, 2 ... in
/// each direction, over the microbatches that pass it.
/// Complexity: O(actions of the rank).
[[nodiscard]] std::vector<int> gradient_order(const schedule& order, int direction, int stage, bool split_layers = true);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/stage_copy.ipp>
#endif
