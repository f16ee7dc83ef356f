// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

/// How a schedule is played. The semantics concern listed sends and receives only.
struct simulate_options {
  send_semantics semantics = hetsched::send_semantics::buffered;
  bool timeline = true;  ///< whether the result has one
};

/// A predicted iteration. Time begins with the first action and ends with the last computation or work on parameters.
struct simulation {
  double makespan_s = 0;
  /// Seconds per microbatch in which the busiest rank gets through the middle half of its work.
  double period_s = 0;
  double bubble_ratio = 0;          ///< share of ranks * makespan without computation or optimizer
  double overlap_ratio = 1;         ///< share of the transfers' time in which the receiver was not idle for them
  std::vector<int> peak_in_flight;  ///< per rank: most (stage, microbatch) pairs between forward and the last of their backward
  std::vector<double> peak_memory_bytes;         ///< per rank: most activations held at once
  std::vector<double> rank_start_s, rank_end_s;  ///< per rank: of its computations and work on parameters
  std::vector<double> rank_busy_s;               ///< per rank: computations and optimizer
  std::vector<double> wire_busy_s;  ///< per wire: sum over what it carries, above the makespan if it carries several at a time
  hetsched::timeline timeline;
};

/// Plays a schedule. An action starts when everything before it in its lane has ended and what it needs has come; lanes of a
/// rank run side by side. Fused computations take fused_factor times their sum. The reductions of a stage's gradients on
/// several ranks are one event. A leg of a transfer starts when all its wires have room; each wire serves in the order of
/// requests (at one time: of the computations that made the tensors, by rank and place), and a leg that waits for another wire
/// keeps its turn. Arrived inputs wait in memory without limit and are not counted. Transfers that are not listed are asked
/// for when their computation ends. Listed sends take no time of their lane when buffered; a receive holds its lane until the
/// tensor is there. With rendezvous a transfer starts when both have their turn, which both lose when it ends. Listed d2h,
/// network and h2d hold their lanes while they occupy wires, under either semantics.
/// Throws: input_error for a workload that is invalid or does not fit; for a schedule whose structure is not sound, with the
/// first sentence of check(); for a deadlock, with the ranks and actions that are stuck.
/// Complexity: O(A log L) for A actions of which L can run side by side.
[[nodiscard]] simulation simulate(const workload& w, const schedule& order, const simulate_options& options = {});

/// The same on a pipeline's stages and links: see make_workload.
[[nodiscard]] inline simulation simulate(const pipeline& p, const schedule& order, const simulate_options& options = {}) {
  return simulate(make_workload(p, order), order, options);
}

/// The same for the 1F1B family with these warm-up counts.
[[nodiscard]] inline simulation simulate(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return simulate(p, one_f_one_b(warmups, microbatches));
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/simulate.ipp>
#endif
