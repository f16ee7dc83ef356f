// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/describe.hpp>

namespace hetsched {

HETSCHED_INLINE void check_cost(const stage_cost& c, const cluster& hardware, layer_range layers, const placement& where) {
  const auto is_time = [](double seconds) { return seconds >= 0 && seconds < longest_time_s; };
  if (is_time(c.forward_s) && is_time(c.backward_s) && is_time(c.weight_backward_s) && is_time(c.sums_s) &&
      is_time(c.staged_sums_s) && c.sums_s <= c.backward_s * (1 + tolerance::sums) && c.weight_bytes >= 0 &&
      c.activation_bytes >= 0 && c.temporary_bytes >= 0 && c.gradient_bytes >= 0 && c.optimizer_bytes >= 0)
    return;
  throw input_error("the cost of " + describe(layers) + " on " + describe(hardware, where) + " is not finite, or negative");
}

HETSCHED_INLINE void check_copies(std::span<const parameter_copy> copies, int layers) {
  for (const auto& c : copies) {
    const auto is_layer = [&](int l) { return l >= 0 && l < layers; };
    const auto what = "layer " + std::to_string(c.layer) + "'s copy of parameters of layer " + std::to_string(c.owner);
    if (!is_layer(c.owner) || !is_layer(c.layer) || c.owner == c.layer)
      throw input_error(what + ": expected two of " + std::to_string(layers) + " layers");
    if (c.gradient_bytes < 0 || c.optimizer_bytes < 0 || c.reduction_bytes < 0 ||
        c.weight_bytes < checked_add(c.gradient_bytes, c.optimizer_bytes))
      throw input_error(what + " has bytes below 0, or fewer than its gradients and optimizer state together");
  }
}

HETSCHED_INLINE void check_transfer(const transfer_cost& c, const cluster& hardware, int boundary, const placement& from,
                                    const placement& to) {
  const auto name = [&] {
    return "transfer of boundary " + std::to_string(boundary) + " from " + describe(hardware, from) + " to " +
           describe(hardware, to);
  };
  if (!(c.forward_s >= 0 && c.backward_s >= 0 && c.bytes >= 0 && c.extra_bytes >= 0))
    throw input_error(name() + " is negative or not a number");
  const auto is_part = [](std::optional<double> part_s, double whole_s) {
    return !part_s || (*part_s >= 0 && *part_s <= whole_s);
  };
  if (!is_part(c.forward_occupied_s, c.forward_s) || !is_part(c.backward_occupied_s, c.backward_s))
    throw input_error(name() + " occupies the boundary for less than 0 s, or for longer than it takes");
}

}  // namespace hetsched
