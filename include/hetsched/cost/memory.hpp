// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/stage_cost.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Bytes that training holds for each parameter, by default mixed precision with Adam: an fp32 copy and two moments.
/// For fp32 throughout: {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8}.
struct training_memory {
  int weight_bytes = 2;
  int gradient_bytes = 2;  ///< 4 where gradients are accumulated in fp32
  int optimizer_bytes = 12;
};

/// Throws input_error unless bytes are not negative.
inline void validate(const training_memory& m) {
  if (m.weight_bytes < 0 || m.gradient_bytes < 0 || m.optimizer_bytes < 0)
    throw input_error("bytes per parameter must not be negative");
}

/// Throws input_error unless it is 0, 1, 2 or 3.
inline void validate_zero(int zero) {
  if (zero < 0 || zero > 3) throw input_error("the ZeRO stage must be 0, 1, 2 or 3");
}

/// Bytes on each device of so many parameters of a stage, at so many bytes for each: divided among the tensor-parallel devices
/// and, if `zero` is at least `sharded_from`, among the replicas. Rounded up.
[[nodiscard]] constexpr bytes_t parameter_share(std::int64_t parameters, int bytes_each, const degrees& d, int zero,
                                                int sharded_from) {
  return ceil_div(checked_mul(parameters, bytes_each), d.tensor * (zero >= sharded_from ? replicas(d) : 1));
}

/// The same of a layer whose experts' parameters, `experts` of them, are also divided among devices of an expert axis, which are
/// replicas otherwise.
[[nodiscard]] constexpr bytes_t parameter_share(std::int64_t parameters, std::int64_t experts, int bytes_each, const degrees& d,
                                                int zero, int sharded_from) {
  if (d.expert == 1 || experts == 0) return parameter_share(parameters, bytes_each, d, zero, sharded_from);
  const auto among = d.tensor * (zero >= sharded_from ? replicas(d) : d.expert);
  return checked_add(parameter_share(parameters - experts, bytes_each, d, zero, sharded_from),
                     ceil_div(checked_mul(experts, bytes_each), among));
}

/// Bytes of weights, gradients and optimizer state on each device of a stage, at a ZeRO stage.
/// Source: Rajbhandari et al. 2020, sec. 5.
[[nodiscard]] constexpr bytes_t state_bytes(std::int64_t parameters, const degrees& d, int zero = 0,
                                            const training_memory& m = {}) {
  return checked_add(checked_add(parameter_share(parameters, m.weight_bytes, d, zero, 3),
                                 parameter_share(parameters, m.gradient_bytes, d, zero, 2)),
                     parameter_share(parameters, m.optimizer_bytes, d, zero, 1));
}

/// How a layer's activations differ from what its chain says.
struct activation_style {
  bool sequence_parallel = true;  ///< norms and dropouts divided among the tensor-parallel devices
  double attention_scale = 1;     ///< bytes kept for each attention score over the usual 5: 1.4 for unfused fp32 softmax
  double activation_scale = 1;    ///< measured over computed activations of a layer: above 1 where kernels are not fused
};

namespace detail {

[[nodiscard]] inline bytes_t whole_bytes(double bytes) {
  if (!(bytes < 9e18)) throw input_error("integer overflow in bytes of memory");
  return static_cast<bytes_t>(__builtin_ceil(bytes));
}

/// Bytes that a device keeps of a layer for `samples` samples of its own. Replicated are those that tensor parallelism does not
/// divide without sequence parallelism: around each all-reduced tensor two norm and layer inputs and half a tensor of mask (5
/// tensors of a GPT block).
[[nodiscard]] inline double kept_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                       std::int64_t samples, const activation_style& style) {
  const auto& l = chain.layers[static_cast<std::size_t>(index)];
  const double scores = static_cast<double>(l.selective_saved_bytes) * style.attention_scale;
  const double rest = static_cast<double>(l.activation_bytes - l.selective_saved_bytes);
  const double replicated = style.sequence_parallel ? 0 : std::min(rest, 2.5 * static_cast<double>(l.tensor_reduce_bytes));
  const double share = static_cast<double>(samples) / d.context;
  const double selective = share * (replicated + (rest - replicated) / d.tensor) * style.activation_scale;
  if (mode == recomputation::none) return selective + share * scores / d.tensor * style.activation_scale;
  if (mode == recomputation::selective || !l.recomputable) return selective;
  const bytes_t input = index > 0 ? chain.layers[static_cast<std::size_t>(index) - 1].boundary_bytes : 0;
  return std::min(selective, share * static_cast<double>(input));
}

}  // namespace detail

/// Bytes that each device keeps of one layer from forward to backward for `samples` samples of its own, rounded up.
/// Tensor parallelism is with sequence parallelism, so it divides all that is kept, but not a layer's input under full
/// recomputation; context parallelism divides the sequence.
/// Requires: the layer exists.
/// Source: Korthikanti et al. 2023, Table 2.
[[nodiscard]] inline bytes_t activation_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                              std::int64_t samples = 1, const activation_style& style = {}) {
  return detail::whole_bytes(detail::kept_bytes(chain, index, mode, d, samples, style));
}

/// Bytes that each device holds while it computes a layer, whatever is in flight: what recomputation brings back, and gradients
/// of half as many bytes as all its activations (thrice as many for layers that are not recomputable, whose logits exist in
/// several precisions). Rounded up.
/// Requires: the layer exists.
[[nodiscard]] inline bytes_t temporary_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                             std::int64_t samples = 1, const activation_style& style = {}) {
  const double kept = detail::kept_bytes(chain, index, mode, d, samples, style),
               all = detail::kept_bytes(chain, index, recomputation::none, d, samples, style);
  return detail::whole_bytes(all - kept + (chain.layers[static_cast<std::size_t>(index)].recomputable ? 0.5 : 3) * all);
}

/// What a device holds besides what stage_cost counts; by default nothing.
struct memory_overheads {
  bytes_t runtime_bytes = 0;  ///< driver context, kernels, workspaces, communicators' buffers
  bytes_t buffer_bytes = 0;   ///< of transfers between stages
  double fragmentation = 0;   ///< share of the activations that the allocator loses
  double margin = 0;          ///< on all: the model errs on the safe side
  friend constexpr bool operator==(const memory_overheads&, const memory_overheads&) = default;
};

/// Throws input_error unless all of it is finite and not negative.
inline void validate(const memory_overheads& o) {
  const auto share = [](double x) { return x >= 0 && x < 1e6; };
  if (o.runtime_bytes < 0 || o.buffer_bytes < 0 || !share(o.fragmentation) || !share(o.margin))
    throw input_error("overheads of memory must not be negative");
}

/// The overheads of a training process, fitted to whole processes as the driver counts them (bench/validation/memory_tables.cpp;
/// docs/accuracy.md tells how well they hold).
inline constexpr memory_overheads fitted_overheads{.runtime_bytes = 3'000'000'000, .fragmentation = 0.06, .margin = 0.069};

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
/// Throws: input_error where bytes overflow.
[[nodiscard]] inline memory_use memory_of(const stage_cost& cost, const memory_overheads& more, double in_flight) {
  const double nearest = __builtin_round(in_flight);
  if (__builtin_fabs(in_flight - nearest) < 1e-6) in_flight = nearest;  // shares of a microbatch add up to a little more or less
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

/// memory_of, solved for what a search asks: a stage fits where
///     weight_bytes + (in flight * activation_bytes + temporary_bytes) * scale <= room
struct memory_room {
  double room = 0;  ///< bytes
  double scale = 1;
};

/// The room on a device of so much memory; roundings of memory_of cannot exceed it.
[[nodiscard]] inline memory_room room_within(bytes_t memory_bytes, const memory_overheads& more) {
  if (more == memory_overheads{}) return {.room = static_cast<double>(memory_bytes), .scale = 1};
  constexpr double roundings = 4;
  return {.room = static_cast<double>(memory_bytes) / (1 + more.margin) - static_cast<double>(more.runtime_bytes) -
                  static_cast<double>(more.buffer_bytes) - roundings,
          .scale = 1 + more.fragmentation};
}

}  // namespace hetsched
