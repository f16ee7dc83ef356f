// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/zero_bubble.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched {

HETSCHED_INLINE schedule split_1f1b(const std::vector<int>& warmups, const std::vector<int>& delays, int microbatches) {
  detail::expect_size(delays.size(), warmups.size(), "delays", "one per stage");
  for (const int delay : delays) detail::expect_count(delay, "a delay", 0);
  auto result = one_f_one_b(warmups, microbatches);
  for (auto& l : result.lanes) {
    const int delay = at(delays, l.rank);
    std::vector<action> split;
    split.reserve(3 * as_size(microbatches));
    int weights = 0;
    const auto weight = [&] {
      split.push_back({.kind = action_kind::backward_weight, .stage = l.rank, .microbatch = weights++});
    };
    for (auto a : l.actions) {
      if (a.kind == action_kind::backward) a.kind = action_kind::backward_input;
      split.push_back(a);
      if (a.kind == action_kind::backward_input && a.microbatch >= delay) weight();
    }
    while (weights < microbatches) weight();
    l.actions = std::move(split);
  }
  return result;
}

HETSCHED_INLINE schedule zb_h1(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  std::vector<int> warmups, delays;
  for (int r = 0; r < ranks; ++r) {
    warmups.push_back(ranks - r);
    delays.push_back(r);
  }
  return split_1f1b(warmups, delays, microbatches);
}

HETSCHED_INLINE schedule zb_h2(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  std::vector<int> warmups, delays;
  for (int r = 0; r < ranks; ++r) {
    warmups.push_back(2 * (ranks - r) - 1);
    delays.push_back(2 * r);
  }
  return split_1f1b(warmups, delays, microbatches);
}

}  // namespace hetsched
