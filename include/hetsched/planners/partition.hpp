// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/core/number_table.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// A chain of layers that is to be cut into the stages of one pipeline, one device a stage, as arrays: ranges, Eigen's vectors
/// and matrices, braces. Devices of one kind are alike. Times are those of a microbatch.
struct partition_problem {
  number_table seconds = {};      ///< [kind][layer]: forward and backward together
  std::vector<int> devices = {};  ///< of each kind
  int microbatches = 1;           ///< per iteration
  /// One way over the boundary behind a layer (layers - 1), between any two devices; or [from kind * kinds + to kind][boundary].
  /// Empty: transfers take no time.
  number_table transfer_s = {};
  double forward_share = 1. / 3;       ///< of `seconds`, the forward's part
  number_table weight_bytes = {};      ///< by layer: held whatever the schedule; empty: none
  number_table activation_bytes = {};  ///< by layer: held per microbatch in flight; empty: none
  number_table memory_bytes = {};      ///< of a device, by kind; empty: enough for anything
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  /// Stages on all devices, in the order of the kinds: those that are at work already, between which layers are to move.
  bool in_order = false;
};

/// Stage i computes layers [cuts[i], cuts[i + 1]) on a device of kinds[i].
struct chain_partition {
  std::vector<int> cuts = {};     ///< stages + 1, from 0 to the number of layers
  std::vector<int> kinds = {};    ///< by stage
  std::vector<int> warmups = {};  ///< by stage: forwards before its first backward
  double iteration_s = 0;         ///< simulated
  /// The bound of interop_dp's evidence, on what it minimises under this warm-up rule; at most iteration_s.
  double bound_s = 0;
  bool complete = false;  ///< the search came to its end: within interop_options::gap of the best
  friend bool operator==(const chain_partition&, const chain_partition&) = default;
};

/// Cuts a chain of layers over devices of several kinds, in any order of the kinds unless it is told; stages on devices of one
/// kind follow each other. interop_dp of arrays; in order: for periods from the longest down the cuts of the least
/// sum (t_i + 2 c_i), of which the simulation takes the best, and moves single layers as long as that helps.
/// Returns: the partition of the shortest iteration; else a refusal that says what memory lacks.
/// Throws: input_error for arrays whose sizes do not fit each other, and times or bytes that are negative or not finite.
/// Complexity, Determinism, Source: as interop_dp; in order O(S L^2) for each period that the cuts of the one before do without.
/// Example:
///   const auto found = partition({.seconds = {{1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2}},
///                                 .devices = {1, 1}, .microbatches = 16, .transfer_s = {.1, .1, .1, .1, .1}});
///   if (found) std::printf("the first stage has %d layers\n", found->cuts[1]);
[[nodiscard]] outcome<chain_partition> partition(const partition_problem& asked);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/partition.ipp>
#endif
