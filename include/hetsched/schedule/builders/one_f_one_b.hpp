// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched {

/// Checks warm-up counts of the 1F1B family. A stage that starts more forwards than the stage before it waits for an
/// activation that this one only sends after a gradient it never gets: the family deadlocks exactly there. Counts above
/// `microbatches` mean `microbatches`.
/// Throws: input_error unless there is a stage, every count is at least 1, and none is larger than the one before it.
void validate_warmups(const std::vector<int>& warmups, int microbatches);

/// The 1F1B family: stage i starts with warmups[i] forwards (at most all of them), then does one backward and one forward in
/// turn, then the backwards that are left.
/// Throws: as validate_warmups.
/// Complexity: O(stages * microbatches).
[[nodiscard]] schedule one_f_one_b(const std::vector<int>& warmups, int microbatches);

/// GPipe: all forwards, then all backwards, both in order of microbatches.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
[[nodiscard]] inline schedule gpipe(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  return one_f_one_b(std::vector<int>(as_size(ranks), microbatches), microbatches);
}

/// The name of forward_schedule in files and commands. It is none of schedule_names(), which train.
inline constexpr std::string_view forward_schedule_name = "forward";

/// Inference: all forwards, in order of microbatches.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
[[nodiscard]] schedule forward_schedule(int ranks, int microbatches);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/one_f_one_b.ipp>
#endif
