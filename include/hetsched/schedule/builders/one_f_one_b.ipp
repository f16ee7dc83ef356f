// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

namespace hetsched {

HETSCHED_INLINE void validate_warmups(const std::vector<int>& warmups, int microbatches) {
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  if (warmups.empty()) throw input_error("a schedule needs at least one stage");
  for (std::size_t i = 0; i < warmups.size(); ++i) {
    if (warmups[i] < 1) throw input_error("the warm-up count of stage " + std::to_string(i) + " is not at least 1");
    if (i > 0 && warmups[i] > warmups[i - 1] && microbatches > warmups[i - 1])
      throw input_error("deadlock: stage " + std::to_string(i) + " starts " + std::to_string(warmups[i]) +
                        " forwards before its first backward, but stage " + std::to_string(i - 1) + " only " +
                        std::to_string(warmups[i - 1]));
  }
}

HETSCHED_INLINE schedule one_f_one_b(const std::vector<int>& warmups, int microbatches) {
  validate_warmups(warmups, microbatches);
  detail::expect_count(static_cast<std::int64_t>(warmups.size()), "the number of stages", 1, detail::most_stages);
  const int ranks = static_cast<int>(warmups.size());
  detail::require_counts(ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, line_map(ranks));
  for (auto& l : result.lanes) {
    const int warmup = at(warmups, l.rank);
    l.actions.reserve(2 * as_size(microbatches));
    int forwards = 0;
    const auto forward = [&] {
      if (forwards < microbatches) l.actions.push_back({.kind = action_kind::forward, .stage = l.rank, .microbatch = forwards++});
    };
    while (forwards < warmup && forwards < microbatches) forward();
    for (int m = 0; m < microbatches; ++m) {
      l.actions.push_back({.kind = action_kind::backward, .stage = l.rank, .microbatch = m});
      forward();
    }
  }
  return result;
}

HETSCHED_INLINE schedule forward_schedule(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, line_map(ranks));
  for (auto& l : result.lanes)
    for (int m = 0; m < microbatches; ++m) l.actions.push_back({.kind = action_kind::forward, .stage = l.rank, .microbatch = m});
  return result;
}

}  // namespace hetsched
