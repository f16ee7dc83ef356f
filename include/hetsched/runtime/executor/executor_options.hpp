// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched {

/// What a loss returns: its value for a microbatch, and its gradient with respect to the last stage's output.
template <class Tensor>
struct loss_value {
  double value = 0;
  Tensor gradient;
};

/// What an executor tells of its stages during a step; what is empty is not called.
struct stage_listener {
  /// (i): the gradients of stages()[i] are final (on a device: the work that makes them so is enqueued), while other work may go
  /// on; where the executor adds two directions, in the end.
  function_ref<void(std::size_t)> ended = {};
  function_ref<bool()> progress = {};    ///< before each wait; returns whether it did something
  function_ref<bool()> looks = {};       ///< waits are short as long as it says so
  function_ref<void()> all_issued = {};  ///< all work of the last pass, and what it transfers, has been issued
};

/// Which of the passes over batches whose gradients are added up: the first begins with zeros, after the last one they are
/// scaled and final. A step of one batch is both.
struct accumulation {
  bool first = true, last = true;
};

struct executor_options {
  double deadline_s = 30;  ///< how long a rank waits for others, or its device, without progress
  /// Buffered: receives are posted early, and sends hold up nobody. Rendezvous, to try a schedule: receives are posted in
  /// their turn, and a lane goes on when its send has been received; transfers by way of the host or in slices stay buffered
  /// there.
  send_semantics semantics = send_semantics::buffered;
  double gradient_scale = 0;  ///< gradients are multiplied by it at the end of a step; 0: by 1 / microbatches, for their mean
  /// The ranks of the communicator from first_rank on are the devices of the schedule's ranks: several pipelines may run in one.
  int first_rank = 0;
  /// Tensors that go by way of the hosts go in chunks of so many bytes, so that copies and the network overlap, if they have two
  /// or more, at both ends are whole tensors, and the communicator is a byte_plane; 0: as one. The same on all ranks.
  std::size_t staging_chunk_bytes = std::size_t{1} << 20;
  std::int64_t first_step = 0;        ///< the number of the first step, in stamps and errors
  std::string_view counted = "step";  ///< what it is the number of, in errors; stays valid
  bool sums_directions = true;  ///< false: the gradients of a stage in two directions stay apart; whoever asks for it adds them
};

/// The bytes of the tensors that an executor holds to take activations and gradients between stages. They are there before
/// its first step, and there are never more. What layers keep in their contexts, and what the loss returns, does not count.
struct arena_bytes {
  std::size_t inputs = 0;     ///< of stages, from a forward to its last backward: the schedule's microbatches in flight
  std::size_t gradients = 0;  ///< of stages' outputs, during the backward, or until its weight half has ended
  std::size_t sending = 0;    ///< made, and not received yet
  std::size_t receiving = 0;  ///< that can come before they are needed
  std::size_t staging = 0;    ///< of both, on the host; only with a stager
  [[nodiscard]] std::size_t total() const { return inputs + gradients + sending + receiving + staging; }
  friend bool operator==(const arena_bytes&, const arena_bytes&) = default;
};

}  // namespace hetsched
