// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

struct check_options {
  /// Under which semantics of sends the schedule must run.
  std::vector<send_semantics> semantics = {send_semantics::buffered, send_semantics::rendezvous};
  /// Per rank, or empty (no limits): how many activations it may hold, each from its forward until its backward, or its
  /// backward_weight where the backward is split, has ended.
  std::vector<int> in_flight_caps = {};
  /// More than these are not listed one by one.
  std::size_t most_findings = 100;
};

namespace detail {

/// The most that a rank's compute lane holds at once, and where that is first reached.
struct memory_peak {
  double amount = 0;
  int at = -1;  ///< position in the lane, -1: it never holds anything
};

[[nodiscard]] std::vector<std::string> check(const schedule& order, const workload* costs, const check_options& options);

}  // namespace detail

/// What is wrong with a schedule, one sentence each:
/// * complete and unique: every microbatch passes through the stages of one direction, on the ranks of the stage map, with one
///   forward and either a backward or a backward_input and a backward_weight; and if any transfer is listed, all are, both ends;
/// * no rank holds more than its cap;
/// * free of deadlock under `semantics`, buffered and rendezvous. The finding names the cycle: each action waits for the next,
///   or is behind it in its lane. A deadlock with buffers is one under rendezvous, too, and is reported as the former only.
/// Where no transfer is listed, under rendezvous a rank receives when it has come to the action that takes the tensor, and a
/// boundary delivers in the order in which its tensors were computed. Legs through host memory (network, h2d) do not wait for
/// each other's ranks.
/// Returns: nothing if the schedule is sound; of one that is not complete, only why it is not.
/// Throws: input_error for caps that are not one per rank.
/// Complexity: O(actions + directions * stages * microbatches).
[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const check_options& options = {}) {
  return detail::check(order, nullptr, options);
}

/// The same, and that no rank's activations exceed the workload's memory capacity.
/// Throws: input_error for a workload without work for each stage, or one of other ranks, stages or directions.
[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const workload& costs,
                                                    const check_options& options = {}) {
  return detail::check(order, &costs, options);
}

/// Per rank, the most activation bytes held at once, in the workload's unit: prefix sums over the compute lanes, which is what
/// any execution reaches.
/// Requires: check(order) is empty.
/// Throws: input_error for a workload without work for each stage or one that does not fit, and for sizes, a stage map, lanes or
/// actions that do not make a schedule. Complexity: O(actions).
[[nodiscard]] std::vector<double> peak_memory(const schedule& order, const workload& costs);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/check/check.ipp>
#endif
