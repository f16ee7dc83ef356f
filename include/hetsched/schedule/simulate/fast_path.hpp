// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <vector>

#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// When each stage ends its last backward under the 1F1B family (GPipe: warm-up `microbatches` on every stage), in seconds
/// after the first forward. Equal bit for bit to simulate(p, warmups, microbatches).rank_end_s, without a timeline.
/// Throws: input_error for an invalid pipeline and as validate_warmups.
/// Complexity: O(S * microbatches) time, O(S + warmups[0]) memory, for S stages.
[[nodiscard]] std::vector<double> stage_ends(const pipeline& p, const std::vector<int>& warmups, int microbatches);

/// Seconds from the first forward to the last backward: stage_ends of the first stage, which ends last.
[[nodiscard]] inline double makespan(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return stage_ends(p, warmups, microbatches).front();
}

namespace detail::unchecked {

// The same for a pipeline and warm-ups that are valid.
[[nodiscard]] std::vector<double> stage_ends(const pipeline& p, const std::vector<int>& warmups, int microbatches);
// The makespan but for its last digits, for searches that play many of one pipeline: once every stage and all that is on its way
// moves by one period a round, the rounds that follow are not played. O(S) for each round until then.
[[nodiscard]] double quick_makespan(const pipeline& p, const std::vector<int>& warmups, int microbatches);

}  // namespace detail::unchecked

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/fast_path.ipp>
#endif
