// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/arena_test.cpp.

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

/// A boundary that tensors of this rank of the schedule cross; to == from where it lies within the rank.
struct rank_edge {
  edge where;                     ///< ranks are those of the schedule
  int buffers = 0;                ///< of the receiving end: enough for the order in which tensors are taken, and two at least
  int leaving = 0;                ///< of the sending end: most tensors that are not received yet
  std::size_t staged = 0;         ///< how many are copied from or to the host
  std::vector<int> microbatches;  ///< in the order of their sends
  std::vector<int> place;         ///< of each microbatch in that order, or -1
};

struct rank_op {
  action what;
  int copy = -1;              ///< of the rank's stages
  int slot = -1;              ///< which of the stage's contexts it uses
  int input = -1;             ///< which of the rank's kept inputs is its stage's; -1: the caller's
  int gradient = -1;          ///< which of the rank's kept gradients is that of its stage's output
  int in = -1;                ///< edge that a computation or a receive takes its tensor from
  int out = -1;               ///< edge that a computation leaves its tensor for, or a send sends over
  std::size_t needs = 0;      ///< first of its needs; they end with those of the next
  std::size_t event_end = 0;  ///< behind the last op of its event
};

/// What stages take and make, as numbers that are equal for equal shapes: by direction, then by stage.
struct stage_shapes {
  std::vector<int> input, gradient;  ///< the gradient of the output
};

/// What one rank does, with everything resolved that can be before the first step.
struct rank_program {
  std::vector<stage_copy> copies;
  std::vector<int> slots;              ///< per copy: contexts
  std::vector<int> inputs, gradients;  ///< tensors to keep: the number of their shape; -1: made by the loss
  std::vector<rank_edge> edges;
  std::vector<rank_op> ops;                                ///< lane by lane, and one more
  std::vector<std::size_t> needs;                          ///< numbers of ops
  std::vector<std::pair<std::size_t, std::size_t>> lanes;  ///< ops [first, last); the compute lane first
  /// Over an ordered_plane: ops that communicate, in the order in which they are issued; those of a group together. With the
  /// first ops of events that have their turn among them: copies to the host, and computations of groups of devices.
  std::vector<std::vector<std::size_t>> issued;
};

/// By op: the stage of the rank whose gradients are final behind it, or -1.
[[nodiscard]] std::vector<int> stage_ends(const rank_program& p);

/// The program of a rank of the schedule.
/// Complexity: O(stages + actions of the rank and of those that send to it).
[[nodiscard]] rank_program compile_rank(const indexed_schedule& order, int rank, send_semantics semantics, stage_shapes shapes);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/rank_program.ipp>
#endif
