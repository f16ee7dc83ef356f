// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/compare_timelines_test.cpp.

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// What makes a measured iteration longer (or shorter: negative) than a predicted one, in seconds of its makespan. The parts add
/// up to the difference.
struct difference_parts {
  double compute_s = 0;    ///< work that took longer
  double transport_s = 0;  ///< transfers that took longer, from setting out to arrival
  double host_s = 0;  ///< ranks that had all they needed and had not begun: what runs a schedule, and processors that are shared
  double wait_s = 0;  ///< waits that come of another order of work than the predicted one, or of other rules
  [[nodiscard]] double total_s() const { return compute_s + transport_s + host_s + wait_s; }
};

/// Plays the measured iteration, in its order of work, with predicted times, and then puts in what was measured: first of work,
/// then of transfers, then the gaps in front of both. What each makes the iteration longer by is its part. Requires: both are of
/// one schedule. Throws: input_error for a measured timeline whose work is listed before what it needs, and as
/// compare_timelines(). Complexity: O(actions * log(actions)).
[[nodiscard]] difference_parts explain_difference(const timeline& predicted, const timeline& measured);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/explain_difference.ipp>
#endif
