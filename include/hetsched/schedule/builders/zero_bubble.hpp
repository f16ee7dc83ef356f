// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched {

/// 1F1B with the backward in two parts: rank r starts with warmups[r] forwards, then does an input gradient, a forward and a
/// weight gradient in turn, where the weight gradients stay delays[r] microbatches behind the input gradients. The first ranks
/// get their gradients sooner for it, and every rank has weight gradients left to fill its wait at the end. A rank holds
/// warmups[r] + delays[r] microbatches at most.
/// Requires: one delay >= 0 per stage.
/// Throws: as validate_warmups.
/// Complexity: O(stages * microbatches).
[[nodiscard]] inline schedule split_1f1b(const std::vector<int>& warmups, const std::vector<int>& delays, int microbatches) {
  HETSCHED_EXPECTS(warmups.size() == delays.size());
  auto result = one_f_one_b(warmups, microbatches);
  for (auto& l : result.lanes) {
    const int delay = delays[static_cast<std::size_t>(l.rank)];
    std::vector<action> split;
    split.reserve(3 * static_cast<std::size_t>(microbatches));
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

/// ZB-H1: no rank holds more microbatches than the first rank of 1F1B, `ranks`.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
/// Source: Qi et al. 2023, "Zero bubble pipeline parallelism".
[[nodiscard]] inline schedule zb_h1(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  std::vector<int> warmups, delays;
  for (int r = 0; r < ranks; ++r) {
    warmups.push_back(ranks - r);
    delays.push_back(r);
  }
  return split_1f1b(warmups, delays, microbatches);
}

/// ZB-H2: no idle time where forward, input gradient and weight gradient take equally long, for 2 * ranks - 1 microbatches
/// held on every rank.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
/// Source: Qi et al. 2023, "Zero bubble pipeline parallelism".
[[nodiscard]] inline schedule zb_h2(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  std::vector<int> warmups, delays;
  for (int r = 0; r < ranks; ++r) {
    warmups.push_back(2 * (ranks - r) - 1);
    delays.push_back(2 * r);
  }
  return split_1f1b(warmups, delays, microbatches);
}

}  // namespace hetsched
