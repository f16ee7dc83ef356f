// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/units.hpp>

namespace hetsched {

/// The planner's atom: a piece of a model that is never cut. All amounts are for one sample (a sequence or an image) on one
/// device, before any sharding.
struct layer {
  std::string name{};
  double forward_flops = 0;
  double backward_flops = 0;         ///< without recomputation
  double weight_backward_flops = 0;  ///< of these, the weight gradients'; 0 if not told apart
  std::int64_t parameters = 0;
  std::int64_t shared_parameters = 0;  ///< owned by another layer of the chain (tied embedding); a copy is held here
  int owner = 0;                       ///< of them: the layer that owns them; if several do, the first
  bytes_t activation_bytes = 0;        ///< kept from forward to backward, no recomputation
  bytes_t selective_saved_bytes = 0;   ///< of these, what selective recomputation drops
  bytes_t boundary_bytes = 0;          ///< the output, as sent to the next layer
  double selective_flops = 0;          ///< forward FLOPs that selective recomputation repeats
  bool recomputable = true;            ///< under full recomputation only its input is kept; else all its activations are
  bytes_t memory_traffic_bytes = 0;    ///< read and written by forward besides the parameters
  double active_fraction = 1;          ///< share of its parameters that forward reads: 0 for tables of which it looks up rows
  bytes_t tensor_reduce_bytes = 0;     ///< all-reduced by forward over a tensor-parallel group (as much again by backward)
  bytes_t context_gather_bytes =
      0;  ///< keys and values exchanged by forward over a context-parallel group (twice that by backward)
  std::int64_t expert_parameters = 0;  ///< of the parameters, those that expert parallelism divides
  bytes_t expert_exchange_bytes =
      0;  ///< sent to experts by forward over an expert-parallel group; as many come back, twice by backward

  friend bool operator==(const layer&, const layer&) = default;
};

/// A model as a chain of layers.
struct layer_chain {
  std::vector<layer> layers{};
  int parameter_bytes = 2;  ///< bytes of one parameter and of one activation element
  int heads = 0;            ///< attention heads, which tensor parallelism must divide; 0 if unknown
  int sequence = 0;         ///< tokens of a sample, which context parallelism must divide; 0 if unknown
  int experts = 0;          ///< of layers that have some, which expert parallelism must divide; 0: none has

  [[nodiscard]] int size() const { return static_cast<int>(layers.size()); }
  friend bool operator==(const layer_chain&, const layer_chain&) = default;
};

/// Forward plus backward FLOPs of one sample, without recomputation: what model FLOP utilisation counts.
[[nodiscard]] inline double training_flops(const layer_chain& chain) {
  double sum = 0;
  for (const auto& l : chain.layers) sum += l.forward_flops + l.backward_flops;
  return sum;
}

/// The number of the model's parameters. Shared ones count once, where they are owned.
[[nodiscard]] inline std::int64_t parameter_count(const layer_chain& chain) {
  std::int64_t sum = 0;
  for (const auto& l : chain.layers) sum = checked_add(sum, l.parameters);
  return sum;
}

/// Of the parameters that a layer holds, the share that another layer owns; 0 if it holds none.
[[nodiscard]] inline double shared_fraction(const layer& l) {
  const auto held = checked_add(l.parameters, l.shared_parameters);
  return held > 0 ? static_cast<double>(l.shared_parameters) / static_cast<double>(held) : 0;
}

/// Checks that a chain makes sense.
/// Throws: input_error, naming the layer and the field, unless there is a layer, every amount is finite and >= 0, and shared
/// parameters are another layer's.
void validate(const layer_chain& chain);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/layer.ipp>
#endif
