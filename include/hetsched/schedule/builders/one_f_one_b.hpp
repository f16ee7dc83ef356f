// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched {

/// Checks warm-up counts of the 1F1B family. A stage that starts more forwards than the stage before it waits for an
/// activation that this one only sends after a gradient it never gets: the family deadlocks exactly there. Counts above
/// `microbatches` mean `microbatches`.
/// Throws: input_error unless there is a stage, every count is at least 1, and none is larger than the one before it.
inline void validate_warmups(const std::vector<int>& warmups, int microbatches) {
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

/// The 1F1B family: stage i starts with warmups[i] forwards (at most all of them), then does one backward and one forward in
/// turn, then the backwards that are left.
/// Throws: as validate_warmups.
/// Complexity: O(stages * microbatches).
[[nodiscard]] inline schedule one_f_one_b(const std::vector<int>& warmups, int microbatches) {
  validate_warmups(warmups, microbatches);
  const int ranks = static_cast<int>(warmups.size());
  auto result = make_schedule(ranks, microbatches, line_map(ranks));
  for (auto& l : result.lanes) {
    const int warmup = warmups[static_cast<std::size_t>(l.rank)];
    l.actions.reserve(2 * static_cast<std::size_t>(microbatches));
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

/// GPipe: all forwards, then all backwards, both in order of microbatches.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
[[nodiscard]] inline schedule gpipe(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  return one_f_one_b(std::vector<int>(static_cast<std::size_t>(ranks), microbatches), microbatches);
}

/// The name of forward_schedule in files and commands. It is none of schedule_names(), which train.
inline constexpr std::string_view forward_schedule_name = "forward";

/// Inference: all forwards, in order of microbatches.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
[[nodiscard]] inline schedule forward_schedule(int ranks, int microbatches) {
  detail::require_counts(ranks, microbatches);
  auto result = make_schedule(ranks, microbatches, line_map(ranks));
  for (auto& l : result.lanes)
    for (int m = 0; m < microbatches; ++m) l.actions.push_back({.kind = action_kind::forward, .stage = l.rank, .microbatch = m});
  return result;
}

}  // namespace hetsched
