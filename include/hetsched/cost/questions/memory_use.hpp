// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/memory/memory_test.cpp.

#include <cmath>
#include <initializer_list>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

namespace detail {

[[nodiscard]] inline bytes_t whole_bytes(double bytes) {
  if (!(bytes < 9e18)) throw input_error("integer overflow in bytes of memory");
  return static_cast<bytes_t>(std::ceil(bytes));
}

}  // namespace detail

/// What a device holds besides what stage_cost counts; by default nothing.
struct memory_overheads {
  bytes_t runtime_bytes = 0;       ///< driver context, kernels, workspaces, communicators' buffers
  bytes_t buffer_bytes = 0;        ///< of transfers between stages
  double fragmentation = 0;        ///< share of the activations that the allocator loses
  double margin = 0;               ///< on all: the model errs on the safe side
  bytes_t communicator_bytes = 0;  ///< of runtime_bytes, what a device does not need that works by itself
  friend constexpr bool operator==(const memory_overheads&, const memory_overheads&) = default;
};

/// Throws input_error unless all of it is finite and not negative.
inline void validate(const memory_overheads& o) {
  const auto share = [](double x) { return x >= 0 && x < 1e6; };
  if (o.runtime_bytes < 0 || o.buffer_bytes < 0 || o.communicator_bytes < 0 || !share(o.fragmentation) || !share(o.margin))
    throw input_error("overheads of memory must not be negative");
}

/// The overheads of a training process, fitted to whole processes of several GPUs as the driver counts them
/// (bench/validation/memory_tables.cpp; docs/accuracy.md tells how well they hold). A communicator of NCCL was measured to take
/// 0.6 GiB when it connects and 0.5 GiB at its first sum and transfer (docs/gpu-results.md). That two of the 3 GB are theirs, as
/// of a trainer with two of them, is a reading: processes of one GPU were not measured.
inline constexpr memory_overheads fitted_overheads{
    .runtime_bytes = 3'000'000'000, .fragmentation = 0.06, .margin = 0.069, .communicator_bytes = 2'000'000'000};

/// The overheads of a device that works by itself: no communicators. Throws: as validate.
[[nodiscard]] inline memory_overheads alone(memory_overheads o) {
  validate(o);
  o.runtime_bytes -= o.communicator_bytes < o.runtime_bytes ? o.communicator_bytes : o.runtime_bytes;
  o.communicator_bytes = 0;
  return o;
}

/// Bytes on each device of a stage, by what holds them.
struct memory_use {
  bytes_t weights = 0;  ///< all state, where a cost model does not tell gradients and optimizer apart
  bytes_t gradients = 0;
  bytes_t optimizer = 0;
  bytes_t activations = 0;  ///< of all microbatches in flight
  bytes_t buffers = 0;      ///< of transfers
  bytes_t temporary = 0;    ///< of the layer at work that needs most, and lost fragments
  bytes_t runtime = 0;
  bytes_t margin = 0;

  [[nodiscard]] constexpr bytes_t total() const {
    bytes_t sum = 0;
    for (const bytes_t part : {weights, gradients, optimizer, activations, buffers, temporary, runtime, margin})
      sum = checked_add(sum, part);
    return sum;
  }
  friend constexpr bool operator==(const memory_use&, const memory_use&) = default;
};

/// What each device of a stage holds at its peak: the one memory model of planners, evaluate and reports. `in_flight`:
/// microbatches between forward and backward, a fraction where a schedule gives back a part first.
/// Throws: input_error for negative bytes, gradients and optimizer that are more than all weights, overheads that make no sense,
/// and where bytes overflow.
[[nodiscard]] memory_use memory_of(const stage_cost& cost, const memory_overheads& more, double in_flight);

/// memory_of, solved for what a search asks: a stage fits where
///     weight_bytes + (in flight * activation_bytes + temporary_bytes) * scale <= room
struct memory_room {
  double room = 0;  ///< bytes
  double scale = 1;
};

/// The room on a device of so much memory; roundings of memory_of cannot exceed it. Throws: input_error for negative memory, and
/// as memory_of for the overheads.
[[nodiscard]] memory_room room_within(bytes_t memory_bytes, const memory_overheads& more);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/memory_use.ipp>
#endif
