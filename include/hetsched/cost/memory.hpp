// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <hetsched/core/error.hpp>
#include <hetsched/cost/placement.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// What backward computes again in place of keeping it: nothing; attention scores (also what flash attention keeps out of
/// memory); everything but a layer's input.
enum class recomputation { none, selective, full };

/// Bytes that training holds for each parameter, by default mixed precision with Adam: an fp32 copy and two moments.
/// For fp32 throughout: {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8}.
struct training_memory {
  int zero = 0;  ///< ZeRO stage: replicas share out 1 optimizer state, 2 also gradients, 3 also weights
  int weight_bytes = 2;
  int gradient_bytes = 2;  ///< 4 where gradients are accumulated in fp32
  int optimizer_bytes = 12;
};

/// Throws input_error unless zero is 0 ... 3 and bytes are not negative.
inline void validate(const training_memory& m) {
  if (m.zero < 0 || m.zero > 3) throw input_error("the ZeRO stage must be 0, 1, 2 or 3");
  if (m.weight_bytes < 0 || m.gradient_bytes < 0 || m.optimizer_bytes < 0)
    throw input_error("bytes per parameter must not be negative");
}

/// Devices of a stage that hold the same parameters: the group that reduces gradients and that ZeRO shards over.
[[nodiscard]] constexpr std::int64_t replicas(const degrees& d) { return std::int64_t{d.data} * d.context; }

/// Bytes of weights, gradients and optimizer state on each device of a stage (Rajbhandari et al. 2020, sec. 5),
/// divided among the tensor-parallel devices and, as the ZeRO stage says, among the replicas. Rounded up.
[[nodiscard]] constexpr bytes_t state_bytes(std::int64_t parameters, const degrees& d, const training_memory& m = {}) {
  const auto share = [&](int bytes_per_parameter, int sharded_from) {
    return ceil_div(checked_mul(parameters, bytes_per_parameter), d.tensor * (m.zero >= sharded_from ? replicas(d) : 1));
  };
  return checked_add(checked_add(share(m.weight_bytes, 3), share(m.gradient_bytes, 2)), share(m.optimizer_bytes, 1));
}

/// Bytes that each device keeps of one layer from forward to backward for `samples` samples of its own, rounded up.
/// Tensor parallelism is with sequence parallelism, so it divides all that is kept (Korthikanti et al. 2023, Table 2),
/// but not a layer's input under full recomputation; context parallelism divides the sequence. Precondition: the layer exists.
[[nodiscard]] inline bytes_t activation_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                              std::int64_t samples = 1) {
  const auto& l = chain.layers[static_cast<std::size_t>(index)];
  const auto sharded = [&](bytes_t bytes) { return ceil_div(checked_mul(bytes, samples), std::int64_t{d.context} * d.tensor); };
  if (mode == recomputation::none) return sharded(l.activation_bytes);
  const auto selective = sharded(l.activation_bytes - l.selective_saved_bytes);
  if (mode == recomputation::selective || !l.recomputable) return selective;
  const bytes_t input = index > 0 ? chain.layers[static_cast<std::size_t>(index) - 1].boundary_bytes : 0;
  const auto kept = ceil_div(checked_mul(input, samples), d.context);
  return kept < selective ? kept : selective;
}

}  // namespace hetsched
