// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/questions/memory_use.hpp>

namespace hetsched {

HETSCHED_INLINE memory_use memory_of(const stage_cost& cost, const memory_overheads& more, double in_flight) {
  const bool is_cost = cost.weight_bytes >= 0 && cost.activation_bytes >= 0 && cost.temporary_bytes >= 0 &&
                       cost.gradient_bytes >= 0 && cost.optimizer_bytes >= 0 &&
                       cost.weight_bytes - cost.gradient_bytes >= cost.optimizer_bytes;
  if (!(is_cost && in_flight >= 0))
    throw input_error("a stage's bytes, their parts and its microbatches in flight must not be negative");
  validate(more);
  const double nearest = std::round(in_flight);
  if (std::fabs(in_flight - nearest) < 1e-6) in_flight = nearest;  // shares of a microbatch add up to a little more or less
  const double activations = static_cast<double>(cost.activation_bytes) * in_flight;
  const auto temporary = static_cast<double>(cost.temporary_bytes);
  memory_use use;
  use.weights = cost.weight_bytes - cost.gradient_bytes - cost.optimizer_bytes;
  use.gradients = cost.gradient_bytes;
  use.optimizer = cost.optimizer_bytes;
  use.activations = detail::whole_bytes(activations);
  use.buffers = more.buffer_bytes;
  use.temporary = detail::whole_bytes(temporary + (activations + temporary) * more.fragmentation);
  use.runtime = more.runtime_bytes;
  use.margin = detail::whole_bytes(static_cast<double>(use.total()) * more.margin);
  return use;
}

HETSCHED_INLINE memory_room room_within(bytes_t memory_bytes, const memory_overheads& more) {
  validate(more);
  if (memory_bytes < 0) throw input_error("a device's memory must not be negative");
  if (more == memory_overheads{}) return {.room = static_cast<double>(memory_bytes), .scale = 1};
  constexpr double roundings = 4;
  return {.room = static_cast<double>(memory_bytes) / (1 + more.margin) - static_cast<double>(more.runtime_bytes) -
                  static_cast<double>(more.buffer_bytes) - roundings,
          .scale = 1 + more.fragmentation};
}

}  // namespace hetsched
