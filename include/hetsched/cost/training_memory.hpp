// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/placement.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Parameters of a GPT with tied embeddings and learned positions (Narayanan et al. 2021, eq. 2; Korthikanti et al. 2023),
/// without the final norm: 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)).
[[nodiscard]] constexpr std::int64_t gpt_parameter_count(std::int64_t layers, std::int64_t hidden, std::int64_t vocab,
                                                         std::int64_t sequence) {
  const auto block = checked_add(checked_mul(12, hidden, hidden), checked_mul(13, hidden));
  return checked_add(checked_mul(layers, block), checked_mul(checked_add(vocab, sequence), hidden));
}

/// Bytes that a device keeps of one GPT block for a microbatch in 16 bits (Korthikanti et al. 2023, eqs. 1, 2, 4, Table 2),
/// rounded up: s b h (10 + 24 / t + 5 a s / (h t)), without the last term under selective recomputation; with sequence
/// parallelism 10 is divided too; full recomputation keeps 2 s b h.
[[nodiscard]] constexpr bytes_t gpt_block_activation_bytes(std::int64_t sequence, std::int64_t samples, std::int64_t hidden,
                                                           std::int64_t heads, int tensor, bool sequence_parallel,
                                                           recomputation mode) {
  const auto tokens = checked_mul(sequence, samples);
  if (mode == recomputation::full) return checked_mul(2, tokens, hidden);
  auto divided = checked_mul(24, tokens, hidden);
  if (mode == recomputation::none) divided = checked_add(divided, checked_mul(5, heads, sequence, tokens));
  const auto replicated = checked_mul(10, tokens, hidden);
  return sequence_parallel ? ceil_div(checked_add(replicated, divided), tensor)
                           : checked_add(replicated, ceil_div(divided, tensor));
}

/// What a training process holds besides its tensors, fitted to whole processes as the driver counts them
/// (bench/validation/memory_tables.cpp; docs/accuracy.md tells how well they hold); all zero leaves the live tensors.
struct memory_overheads {
  bytes_t runtime_bytes = 3'000'000'000;  ///< driver context, kernels, workspaces, communicators' buffers
  int step_bytes = 0;                     ///< per parameter that a device steps; see flattening_step_bytes
  double fragmentation = 0.06;            ///< share of the activations that the allocator loses
  double margin = 0.069;                  ///< on all: the model errs on the safe side
};

/// step_bytes of optimizers that flatten parameters and gradients into fp32 copies, which the allocator keeps (DeepSpeed's).
inline constexpr int flattening_step_bytes = 20;

/// How a stage is trained, as far as memory goes.
struct stage_memory_options {
  std::int64_t samples = 1;  ///< of a microbatch, on each device
  int in_flight = 1;         ///< microbatches between forward and backward at the peak: warm-up count, as the schedule holds it
  recomputation recompute = recomputation::none;
  bool sequence_parallel = true;  ///< norms and dropouts divided among the tensor-parallel devices
  training_memory state{};
  double attention_scale = 1;   ///< bytes kept for each attention score over the usual 5: 1.4 for unfused fp32 softmax
  double activation_scale = 1;  ///< measured over computed activations of a layer: above 1 where kernels are not fused
  memory_overheads overheads{};
};

/// Bytes on each device of a stage, by what holds them.
struct memory_use {
  bytes_t weights = 0;
  bytes_t gradients = 0;
  bytes_t optimizer = 0;
  bytes_t activations = 0;  ///< of all microbatches in flight
  bytes_t temporary = 0;    ///< backward of the layer that needs most, gathered weights, optimizer step, fragments
  bytes_t runtime = 0;
  bytes_t margin = 0;

  [[nodiscard]] constexpr bytes_t total() const {
    bytes_t sum = 0;
    for (const bytes_t part : {weights, gradients, optimizer, activations, temporary, runtime, margin})
      sum = checked_add(sum, part);
    return sum;
  }
  friend constexpr bool operator==(const memory_use&, const memory_use&) = default;
};

namespace detail {

// Bytes kept of one layer for a microbatch; replicated are those that tensor parallelism does not divide without sequence
// parallelism: around each all-reduced tensor two norm and layer inputs and half a tensor of mask (5 tensors of a GPT block).
[[nodiscard]] inline double kept_bytes(const layer& l, bytes_t input_bytes, recomputation mode, const degrees& d,
                                       const stage_memory_options& o) {
  const double scores = static_cast<double>(l.selective_saved_bytes) * o.attention_scale;
  const double rest = static_cast<double>(l.activation_bytes - l.selective_saved_bytes);
  const double replicated = o.sequence_parallel ? 0 : std::min(rest, 2.5 * static_cast<double>(l.tensor_reduce_bytes));
  const double share = static_cast<double>(o.samples) / d.context;
  const double selective = share * (replicated + (rest - replicated) / d.tensor) * o.activation_scale;
  if (mode == recomputation::none) return selective + share * scores / d.tensor * o.activation_scale;
  if (mode == recomputation::selective || !l.recomputable) return selective;
  return std::min(selective, share * static_cast<double>(input_bytes));
}

[[nodiscard]] inline bytes_t whole_bytes(double bytes) {
  if (!(bytes < 9e18)) throw input_error("integer overflow in bytes of memory");
  return static_cast<bytes_t>(std::ceil(bytes));
}

}  // namespace detail

/// Memory of each device of a stage that trains `layers` of the chain. A copy of shared parameters counts unless the stage has
/// the chain's first layer, which owns them. Temporary are, at once: for the layer that needs most, what recomputation brings
/// back and gradients of half as many bytes as all its activations (thrice as many for layers that are not recomputable, whose
/// logits exist in several precisions); at ZeRO stage 3 the whole weights of the largest layer; the step's copies; lost
/// fragments. Throws input_error for options that make no sense or bytes that overflow. O(layers of the stage).
[[nodiscard]] inline memory_use stage_memory(const layer_chain& chain, layer_range layers, const degrees& d,
                                             const stage_memory_options& o = {}) {
  HETSCHED_EXPECTS(layers.first >= 0 && layers.first <= layers.last && layers.last <= chain.size());
  validate(o.state);
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(what);
  };
  require(d.data >= 1 && d.context >= 1 && d.tensor >= 1, "degrees must be at least 1");
  require(o.samples >= 1 && o.in_flight >= 0, "a microbatch needs samples, and microbatches in flight must not be negative");
  require(o.attention_scale >= 0 && o.activation_scale >= 0, "scales of activations must not be negative");
  const auto& more = o.overheads;
  require(more.runtime_bytes >= 0 && more.step_bytes >= 0 && more.fragmentation >= 0 && more.margin >= 0,
          "overheads must not be negative");

  std::int64_t parameters = 0;
  double activations = 0, worst = 0, largest_weights = 0;
  for (int i = layers.first; i < layers.last; ++i) {
    const auto& l = chain.layers[static_cast<std::size_t>(i)];
    const auto held = checked_add(l.parameters, layers.first == 0 ? 0 : l.shared_parameters);
    parameters = checked_add(parameters, held);
    largest_weights = std::max(largest_weights, static_cast<double>(held) * o.state.weight_bytes / d.tensor);
    const bytes_t input = i > 0 ? chain.layers[static_cast<std::size_t>(i) - 1].boundary_bytes : 0;
    const double kept = detail::kept_bytes(l, input, o.recompute, d, o),
                 all = detail::kept_bytes(l, input, recomputation::none, d, o);
    activations += kept;
    worst = std::max(worst, all - kept + (l.recomputable ? 0.5 : 3) * all);
  }

  memory_use use;
  const auto part = [&](int bytes_per_parameter, int sharded_from) {
    return ceil_div(checked_mul(parameters, bytes_per_parameter), d.tensor * (o.state.zero >= sharded_from ? replicas(d) : 1));
  };
  use.weights = part(o.state.weight_bytes, 3);
  use.gradients = part(o.state.gradient_bytes, 2);
  use.optimizer = part(o.state.optimizer_bytes, 1);
  use.activations = detail::whole_bytes(activations * o.in_flight);
  const double gathered = o.state.zero == 3 ? largest_weights : 0;
  use.temporary = detail::whole_bytes(worst + gathered + static_cast<double>(part(more.step_bytes, 1)) +
                                      (activations * o.in_flight + worst) * more.fragmentation);
  use.runtime = more.runtime_bytes;
  use.margin = detail::whole_bytes(static_cast<double>(use.total()) * more.margin);
  return use;
}

}  // namespace hetsched
