// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

HETSCHED_INLINE schedule make_schedule(int ranks, int microbatches, std::vector<int> rank_of, int directions) {
  detail::expect_count(ranks, "the number of ranks", 1, detail::most_stages);
  detail::expect_count(microbatches, "the number of microbatches");
  detail::expect_count(directions, "the number of directions", 1, INT16_MAX);
  if (rank_of.empty() || rank_of.size() % as_size(directions) != 0)
    throw input_error("a stage map has " + std::to_string(rank_of.size()) + " entries, expected as many for each of " +
                      std::to_string(directions) + " directions");
  for (const int r : rank_of)
    if (r < 0 || r >= ranks) detail::expect_count(r, "a rank of the stage map", 0, ranks - 1);
  schedule result{.ranks = ranks,
                  .stages = static_cast<int>(rank_of.size()) / directions,
                  .directions = directions,
                  .microbatches = microbatches,
                  .rank_of = std::move(rank_of),
                  .lanes = {}};
  for (int r = 0; r < ranks; ++r) result.lanes.push_back({.rank = r, .stream = stream::compute, .peer = -1, .actions = {}});
  return result;
}

HETSCHED_INLINE bool lists(const schedule& order, action_kind kind) {
  return std::any_of(order.lanes.begin(), order.lanes.end(), [&](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(), [&](const action& a) { return a.kind == kind; });
  });
}

HETSCHED_INLINE bool is_forward_only(const schedule& order) {
  return std::none_of(order.lanes.begin(), order.lanes.end(), [](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) {
      detail::expect_kind(a.kind);
      return is_training(a.kind);
    });
  });
}

}  // namespace hetsched
