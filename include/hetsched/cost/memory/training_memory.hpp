// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/memory/memory.hpp>
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

/// How a stage is trained, as far as memory goes.
struct stage_memory_options {
  std::int64_t samples = 1;  ///< of a microbatch, on each device
  int in_flight = 1;         ///< microbatches between forward and backward at the peak: warm-up count, as the schedule holds it
  recomputation recompute = recomputation::none;
  int zero = 0;  ///< ZeRO stage
  activation_style style{};
  training_memory state{};
  memory_overheads overheads = fitted_overheads;
};

/// Bytes on each device of what it holds of one layer, as the memory of a stage_cost; `parameters`: those of the layer that it
/// holds. At ZeRO stage 3 the layer at work has its whole weights. The first and the last layer have no copies in fp8.
/// Requires: the layer exists.
[[nodiscard]] stage_cost layer_memory(const layer_chain& chain, int index, std::int64_t parameters, const placement& where,
                                      std::int64_t samples, const training_memory& state, const activation_style& style = {});

/// Memory of each device of a stage that trains `layers` of the chain. A copy of shared parameters counts unless the stage has
/// the layer that owns them.
/// Throws: input_error for options that make no sense or bytes that overflow.
/// Complexity: O(layers of the stage).
[[nodiscard]] memory_use stage_memory(const layer_chain& chain, layer_range layers, const degrees& d,
                                      const stage_memory_options& o = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/memory/training_memory.ipp>
#endif
