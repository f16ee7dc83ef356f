// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <string>
#include <vector>

#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

namespace detail {

/// An amount of memory, whose unit is the user's: up to six decimals.
[[nodiscard]] std::string amount_text(double x);

/// What an action takes at its start and gives back at its end: bytes, and (stage, microbatch) pairs in flight.
struct memory_change {
  double taken = 0, given_back = 0;
  int begun = 0, ended = 0;
};

/// A forward whose activations are recomputed keeps its checkpoint only; the recompute turns that into the activations.
[[nodiscard]] memory_change change_of(const stage_work& w, action_kind kind, bool recomputed);

}  // namespace detail

/// What a rank holds from a time on.
struct memory_step {
  double time_s = 0;
  double bytes = 0;
  friend constexpr bool operator==(const memory_step&, const memory_step&) = default;
};

/// Bytes of activations on every rank over time, from an iteration that was predicted or measured: one step where they change,
/// in order of time, two at one time where a computation ends and the next one starts. Computations take at their start and
/// give back at their end; those that are fused take all before they give back.
/// Throws: input_error for a workload without work for each stage, and for a timeline with actions of other stages, directions,
/// microbatches or ranks than the workload and itself have, or at no times. Complexity: O(actions).
[[nodiscard]] std::vector<std::vector<memory_step>> memory_over_time(const workload& w, const timeline& t);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/activation_memory.ipp>
#endif
