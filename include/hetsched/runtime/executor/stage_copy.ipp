// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<stage_copy> stages_of_rank(const schedule& order, int rank) {
  std::vector<stage_copy> found;
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s < order.stages; ++s)
      if (order.rank(c, s) == rank) found.push_back({c, s});
  return found;
}

HETSCHED_INLINE std::vector<int> gradient_order(const schedule& order, int direction, int stage, bool split_layers) {
  std::vector<int> microbatches;
  const auto deferred = split_layers ? action_kind::backward_weight : action_kind::backward_input;
  for (const auto& a : at(order.lanes, order.rank(direction, stage)).actions)
    if (a.direction == direction && a.stage == stage && (a.kind == action_kind::backward || a.kind == deferred))
      microbatches.push_back(a.microbatch);
  return microbatches;
}

}  // namespace hetsched
