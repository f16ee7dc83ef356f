// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// What one rank does in a timeline.
struct rank_figures {
  double span_s = 0;         ///< from the beginning of its first work to the end of its last
  double period_s = 0;       ///< per microbatch, over the middle half of its work
  double busy_s = 0;         ///< computations and optimizer
  double bubble_ratio = 0;   ///< share of the timeline's makespan in which it is not busy
  double overlap_ratio = 1;  ///< share of the time of the transfers to it in which it was not idle for them
  double received_s = 0;     ///< time of the transfers to it, from setting out to arrival
  double exposed_s = 0;      ///< of these, what it was idle for
};

/// What simulate() says of a prediction, said of any timeline: the same definitions, so predicted and measured compare.
/// What a timeline does not tell is left out: a tensor counts as there when it has arrived, even if its schedule lists its
/// receive behind another one.
struct timeline_figures {
  double makespan_s = 0;
  double period_s = 0;  ///< the busiest rank's
  double bubble_ratio = 0;
  double overlap_ratio = 1;
  std::vector<rank_figures> ranks;
};

namespace detail {

/// A tensor on its way over a boundary: from when to when, all legs together.
struct timeline_transfer {
  std::tuple<bool, int, int, int> key;  ///< of a gradient?, direction, boundary, microbatch
  int to = 0;                           ///< rank
  double sent_s = 0, came_s = 0;
};

/// All transfers of a timeline, sorted by key.
/// Complexity: O(actions * log(actions)).
[[nodiscard]] std::vector<timeline_transfer> transfers_of(const timeline& t);

}  // namespace detail

/// Figures of a timeline. Collectives count for the span only.
/// Throws: input_error for actions of ranks that it does not have, or at no times, and without a rank and a microbatch.
/// Complexity: O(actions * log(actions)).
[[nodiscard]] timeline_figures figures(const timeline& t);

/// Measured sends begin when they are handed over, predicted ones when their wire is free. This lets those that wait behind
/// another one of their kind between the same two ranks begin when that has arrived.
/// Throws: input_error for actions of ranks that the timeline does not have, or at no times.
/// Complexity: O(actions * log(actions)).
[[nodiscard]] timeline from_departure(timeline t);

/// Two timelines of one iteration.
struct timeline_comparison {
  timeline_figures predicted, measured;
};

/// The figures of both, of the measured one from_departure().
/// Throws: input_error unless they have as many ranks and microbatches, and as figures().
/// Complexity: O(actions * log(actions)).
[[nodiscard]] timeline_comparison compare_timelines(const timeline& predicted, const timeline& measured);

/// How far a measured value lies above a predicted one, as a share of the latter; 0 if nothing was predicted.
[[nodiscard]] inline double deviation(double predicted, double measured) { return predicted != 0 ? measured / predicted - 1 : 0; }

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/compare_timelines.ipp>
#endif
