// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// What a stage costs per microbatch (seconds) and holds per device (bytes).
struct stage_cost {
  double forward_s = 0;
  double backward_s = 0;         ///< recomputation included
  bytes_t weight_bytes = 0;      ///< held whatever the schedule: weights, gradients, optimizer state
  bytes_t activation_bytes = 0;  ///< held per microbatch in flight
  double weight_backward_s = 0;  ///< of backward_s, the weight gradients' time; 0 if not told apart
  bytes_t gradient_bytes = 0;    ///< of weight_bytes, the gradients; 0 if not told apart
  bytes_t optimizer_bytes = 0;   ///< of weight_bytes, the optimizer state; 0 if not told apart
  bytes_t temporary_bytes = 0;   ///< held while the stage computes, however many are in flight: of a range, the largest
  /// Of backward_s, and of weight_backward_s if that is told: adding gradients to those of earlier microbatches, which the first
  /// one of a pipeline does not, as their mean in a pipeline that does the whole batch. `staged_sums_s`: what takes its place, if
  /// that is more, where pipelines have several stages. Both are 0 once evaluate has charged what a pipeline adds.
  double sums_s = 0;
  double staged_sums_s = 0;

  [[nodiscard]] constexpr double total_s() const { return forward_s + backward_s; }

  /// Puts another layer into the same stage.
  constexpr stage_cost& operator+=(const stage_cost& other) {
    forward_s += other.forward_s;
    backward_s += other.backward_s;
    weight_backward_s += other.weight_backward_s;
    sums_s += other.sums_s;
    staged_sums_s += other.staged_sums_s;
    weight_bytes = checked_add(weight_bytes, other.weight_bytes);
    activation_bytes = checked_add(activation_bytes, other.activation_bytes);
    gradient_bytes = checked_add(gradient_bytes, other.gradient_bytes);
    optimizer_bytes = checked_add(optimizer_bytes, other.optimizer_bytes);
    if (other.temporary_bytes > temporary_bytes) temporary_bytes = other.temporary_bytes;
    return *this;
  }
  friend constexpr bool operator==(const stage_cost&, const stage_cost&) = default;
};

/// Charges a stage with adding gradients up in a pipeline that computes `microbatches` of the batch's `of_batch`: each microbatch
/// but the pipeline's first adds its own.
/// Requires: 1 <= microbatches <= of_batch.
constexpr void charge_sums(stage_cost& c, double microbatches, double of_batch, bool several_stages) {
  if (c.sums_s > 0 || c.staged_sums_s > 0) {
    const double all = several_stages && c.staged_sums_s > c.sums_s ? c.staged_sums_s : c.sums_s;
    const double own = of_batch > microbatches ? (1 - 1 / microbatches) / (1 - 1 / of_batch) : 1;
    const double more = all * own - c.sums_s;
    c.backward_s = c.backward_s + more > 0 ? c.backward_s + more : 0;
    if (c.weight_backward_s > 0) c.weight_backward_s = c.weight_backward_s + more > 0 ? c.weight_backward_s + more : 0;
  }
  c.sums_s = c.staged_sums_s = 0;
}

/// Parameters that one layer owns and another holds a copy of, as a tied embedding: a stage that has both layers holds them once,
/// and stages that have one each add up their gradients once per iteration.
struct parameter_copy {
  int owner = 0;                ///< the layer that owns them
  int layer = 0;                ///< the layer whose costs count the copy
  bytes_t weight_bytes = 0;     ///< of the copy on each device, as in stage_cost: gradients and optimizer state included
  bytes_t gradient_bytes = 0;   ///< of weight_bytes
  bytes_t optimizer_bytes = 0;  ///< of weight_bytes
  bytes_t reduction_bytes = 0;  ///< of the gradients, whole; 0: nothing has to be added up

  [[nodiscard]] constexpr bool is_within(layer_range layers) const {
    return owner >= layers.first && layer >= layers.first && owner < layers.last && layer < layers.last;
  }
  friend constexpr bool operator==(const parameter_copy&, const parameter_copy&) = default;
};

/// Takes out of the sum of a stage's layers the copies of what it holds anyway. Requires: copies that the sum counts.
constexpr void drop_copies(stage_cost& sum, layer_range layers, std::span<const parameter_copy> copies) {
  for (const auto& c : copies) {
    if (!c.is_within(layers)) continue;
    sum.weight_bytes -= c.weight_bytes;
    sum.gradient_bytes -= c.gradient_bytes;
    sum.optimizer_bytes -= c.optimizer_bytes;
  }
}

/// What it costs to move one microbatch over a boundary between stages, forward its activation and back the gradient. A plain
/// number of seconds is a transfer that takes so long either way, and lets no other one pass meanwhile. One of several phases,
/// which use different ports, can let the next one begin earlier: see price_of.
struct transfer_cost {
  double forward_s = 0;
  double backward_s = 0;
  bytes_t bytes = 0;                               ///< of the activation, all of the boundary's devices together; 0 if not told
  bytes_t extra_bytes = 0;                         ///< held on each device of either side meanwhile
  std::string_view strategy = {};                  ///< how it is resharded; outlives the cost
  std::optional<double> forward_occupied_s = {};   ///< of forward_s, until the next one can begin; none: all of it
  std::optional<double> backward_occupied_s = {};  ///< the same of backward_s

  constexpr transfer_cost() = default;
  constexpr transfer_cost(double seconds) : forward_s(seconds), backward_s(seconds) {}
  constexpr transfer_cost(double forward, double backward, bytes_t moved = 0, bytes_t extra = 0, std::string_view how = {})
      : forward_s(forward), backward_s(backward), bytes(moved), extra_bytes(extra), strategy(how) {}

  [[nodiscard]] constexpr double round_trip_s() const { return forward_s + backward_s; }
  [[nodiscard]] constexpr double slower_way_s() const { return forward_s < backward_s ? backward_s : forward_s; }
  /// Of the two ways, the longer time until the next transfer can begin: the least period of the boundary.
  [[nodiscard]] constexpr double occupied_s() const {
    const double there_s = forward_occupied_s.value_or(forward_s), back_s = backward_occupied_s.value_or(backward_s);
    return there_s < back_s ? back_s : there_s;
  }
  friend constexpr bool operator==(const transfer_cost&, const transfer_cost&) = default;
};

/// What it costs to add up the gradients of layers that several stages hold. A plain number is the seconds.
struct reduction_cost {
  double seconds = 0;
  bytes_t bytes = 0;  ///< of the gradients, once; 0 if not told

  constexpr reduction_cost() = default;
  constexpr reduction_cost(double s, bytes_t b = 0) : seconds(s), bytes(b) {}
  friend constexpr bool operator==(const reduction_cost&, const reduction_cost&) = default;
};

}  // namespace hetsched
