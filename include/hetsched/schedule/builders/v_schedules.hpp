// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include <hetsched/schedule/action.hpp>

namespace hetsched {
namespace detail {

/// When a rank of a V works on microbatch 0, in units: down the first leg, up the second, and back (input gradients) down the
/// second and up the first. Microbatch m follows v_period * m later; the two units left over are for weight gradients.
using v_times = std::array<int, 4>;

/// A building block and what to do with it.
struct v_rule {
  std::array<int, 4> hops;      ///< units between neighbouring ranks, by leg
  bool early_forwards = false;  ///< before a rank's first gradient, forwards may overtake others
};

/// Repeats the block for every microbatch, then squeezes out the time that this wastes at both ends: unit by unit, a rank does
/// what comes first in the order of its block if it can, and a weight gradient otherwise, or where a forward lacks the room.
/// Legal, as the units are an execution in this order; and it gets through, as of everything left what the block has first
/// can always be done.
[[nodiscard]] schedule v_schedule(int ranks, int microbatches, const v_rule& rule);

}  // namespace detail

// Schedules with stages r and 2 * ranks - 1 - r on rank r, input and weight gradients apart.

/// ZB-V: no idle time where forward, input and weight gradient take equally long (from 2 * ranks - 1 microbatches on), and no
/// rank holds more than the first one does in 1F1B, `ranks` microbatches.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * (ranks + microbatches)).
/// Source: Qi et al. 2024, "Pipeline parallelism with controllable memory".
[[nodiscard]] inline schedule zb_v(int ranks, int microbatches) {
  return detail::v_schedule(ranks, microbatches, {.hops = {4, 2, 4, 2}, .early_forwards = true});
}

/// V-Half: holds half of that, ranks / 2 + 1 microbatches (rounded down), for half the idle time of 1F1B.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * (ranks + microbatches)).
/// Source: Qi et al. 2024, "Pipeline parallelism with controllable memory".
[[nodiscard]] inline schedule v_half(int ranks, int microbatches) {
  return detail::v_schedule(ranks, microbatches, {.hops = {2, 1, 2, 1}, .early_forwards = true});
}

/// V-Min: holds a third of that, (ranks + 4) / 3 microbatches (rounded down), for two thirds of the idle time of 1F1B.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * (ranks + microbatches)).
/// Source: Qi et al. 2024, "Pipeline parallelism with controllable memory".
[[nodiscard]] inline schedule v_min(int ranks, int microbatches) {
  return detail::v_schedule(ranks, microbatches, {.hops = {1, 1, 1, 1}});
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/v_schedules.ipp>
#endif
