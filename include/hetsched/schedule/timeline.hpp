// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <vector>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// An action with its time. A transfer is listed once, by its sender (send, or d2h, network and h2d), with the rank it goes to.
struct timed_action {
  action what;
  int rank = 0;
  int peer = -1;  ///< the receiving rank of a transfer
  double start_s = 0;
  double end_s = 0;
  friend constexpr bool operator==(const timed_action&, const timed_action&) = default;
};

/// Everything that happens in one iteration, predicted or measured; ordered by rank, computations before transfers, then by time.
struct timeline {
  int ranks = 0;
  int microbatches = 0;
  std::vector<timed_action> actions;
};

namespace detail {

/// Checks a timeline.
/// Throws: input_error for less than 0 ranks or microbatches, more than most_stages ranks, and for actions of no kind, of less
/// than 0 stages or directions, of ranks that it does not have, or at no finite times.
void validate(const timeline& t);

}  // namespace detail

/// The timelines of several pipelines as one, rank after rank.
/// Throws: input_error for actions of ranks that their timeline does not have, or at no times, and for more ranks than an int
/// counts.
[[nodiscard]] timeline side_by_side(const std::vector<timeline>& pipelines);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/timeline.ipp>
#endif
