// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

HETSCHED_INLINE schedule make_schedule(int ranks, int microbatches, std::vector<int> rank_of, int directions) {
  schedule result{.ranks = ranks,
                  .stages = static_cast<int>(rank_of.size()) / directions,
                  .directions = directions,
                  .microbatches = microbatches,
                  .rank_of = std::move(rank_of),
                  .lanes = {}};
  for (int r = 0; r < ranks; ++r) result.lanes.push_back({.rank = r, .stream = stream::compute, .peer = -1, .actions = {}});
  return result;
}

}  // namespace hetsched
