// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Bytes that training holds for each parameter, by default mixed precision with Adam: an fp32 copy and two moments.
/// For fp32 throughout: {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8}.
struct training_memory {
  int weight_bytes = 2;    ///< of the weights that compute, which ranks gather
  int gradient_bytes = 2;  ///< 4 where gradients are accumulated in fp32
  int optimizer_bytes = 12;
  int reduced_bytes = gradient_bytes;       ///< of a gradient on its way between replicas
  int sharded_weight_bytes = weight_bytes;  ///< held at ZeRO stage 3; 0 where weights are gathered from the fp32 copy
  int working_bytes = weight_bytes;         ///< at ZeRO stage 3, for whole weights and gradients of the layer at work
  int working_part_bytes = 0;  ///< at ZeRO stage 3, for what is there of it in shares alone, as copies to gather from
  int fp8_bytes = 0;           ///< of copies in fp8 that products take, whole at any ZeRO stage; not of state_bytes
  /// Read and written by kernels of their own to add a later microbatch's gradient to that of those before; 0 where the product
  /// that makes it adds it, too.
  int accumulation_bytes = 0;
  /// The same where a pipeline has several stages, which keep gradients whole until its end at any ZeRO stage; 0: as any
  /// pipeline, of a shard from ZeRO stage 2 on. Pipelines of one stage are charged no more than this for what they hold whole.
  int staged_accumulation_bytes = 0;

  [[nodiscard]] constexpr int held_weight_bytes(int zero) const { return zero >= 3 ? sharded_weight_bytes : weight_bytes; }
  friend constexpr bool operator==(const training_memory&, const training_memory&) = default;
};

/// Throws input_error unless bytes are not negative.
inline void validate(const training_memory& m) {
  for (const int bytes : {m.weight_bytes, m.gradient_bytes, m.optimizer_bytes, m.reduced_bytes, m.sharded_weight_bytes,
                          m.working_bytes, m.working_part_bytes, m.fp8_bytes, m.accumulation_bytes, m.staged_accumulation_bytes})
    if (bytes < 0) throw input_error("bytes per parameter must not be negative");
}

/// Throws input_error unless it is 0, 1, 2 or 3.
inline void validate_zero(int zero) {
  if (zero < 0 || zero > 3) throw input_error("the ZeRO stage must be 0, 1, 2 or 3");
}

/// Bytes on each device of so many parameters of a stage, at so many bytes for each: divided among the tensor-parallel devices
/// and, if `zero` is at least `sharded_from`, among the replicas. Rounded up.
/// Throws: input_error for degrees below 1, less than 0 parameters or bytes, and bytes that do not fit 64 bits.
[[nodiscard]] constexpr bytes_t parameter_share(std::int64_t parameters, int bytes_each, const degrees& d, int zero,
                                                int sharded_from) {
  if (d.data < 1 || d.context < 1 || d.tensor < 1 || d.expert < 1) throw input_error("the degrees of a stage must be at least 1");
  return ceil_div(checked_mul(parameters, bytes_each), checked_mul(d.tensor, zero >= sharded_from ? replicas(d) : 1));
}

/// The same of a layer whose experts' parameters, `experts` of them, are also divided among devices of an expert axis, which are
/// replicas otherwise.
/// Throws: as the one above, and input_error for more experts' parameters than parameters.
[[nodiscard]] constexpr bytes_t parameter_share(std::int64_t parameters, std::int64_t experts, int bytes_each, const degrees& d,
                                                int zero, int sharded_from) {
  if (d.expert == 1 || experts == 0) return parameter_share(parameters, bytes_each, d, zero, sharded_from);
  const auto among = checked_mul(d.tensor, zero >= sharded_from ? replicas(d) : d.expert);
  return checked_add(
      parameter_share(checked_add(parameters, experts == INT64_MIN ? INT64_MAX : -experts), bytes_each, d, zero, sharded_from),
      ceil_div(checked_mul(experts, bytes_each), among));
}

/// Bytes of weights, gradients and optimizer state on each device of a stage, at a ZeRO stage.
/// Throws: as parameter_share.
/// Source: Rajbhandari et al. 2020, sec. 5.
[[nodiscard]] constexpr bytes_t state_bytes(std::int64_t parameters, const degrees& d, int zero = 0,
                                            const training_memory& m = {}) {
  return checked_add(checked_add(parameter_share(parameters, m.held_weight_bytes(zero), d, zero, 3),
                                 parameter_share(parameters, m.gradient_bytes, d, zero, 2)),
                     parameter_share(parameters, m.optimizer_bytes, d, zero, 1));
}

/// The copies of a chain where only parameters are held, whole on every device, as in inference.
[[nodiscard]] inline std::vector<parameter_copy> parameters_shared_in(const layer_chain& chain) {
  std::vector<parameter_copy> all;
  for (int i = 0; i < chain.size(); ++i)
    if (const auto& l = at(chain.layers, i); l.shared_parameters > 0)
      all.push_back(
          {.owner = l.owner, .layer = i, .weight_bytes = checked_mul(l.shared_parameters, std::int64_t{chain.parameter_bytes})});
  return all;
}

/// How a layer's activations differ from what its chain says.
struct activation_style {
  /// Tensors of an activation's size that tensor-parallel devices keep whole, for each that they add up: 0 with sequence
  /// parallelism as Megatron-LM has it, 1 where inputs of products stay gathered, 2.5 without (norm and layer inputs, a mask).
  double whole_tensors = 0;
  bool whole_inputs = true;     ///< full recomputation keeps inputs whole on each of them; else their part
  double attention_scale = 1;   ///< bytes kept for each attention score over the usual 5: 1.4 for unfused fp32 softmax
  double activation_scale = 1;  ///< measured over computed activations of a layer: above 1 where kernels are not fused
  /// Of what a layer keeps that is not recomputable, as the logits: what the loss makes of it. 1: their gradient, as this
  /// library's losses do; 3: in several precisions, as PyTorch's; 0 where one kernel turns logits into their gradient.
  double loss_copies = 1;
  double split_loss_copies = loss_copies;  ///< the same where tensor-parallel devices share the logits
  double selective_kept = 1;  ///< share of what a layer keeps under selective recomputation, scores aside, that is not made again

  friend constexpr bool operator==(const activation_style&, const activation_style&) = default;
};

/// Throws input_error unless scales and copies are finite and not negative.
inline void validate(const activation_style& s) {
  for (const double x : {s.whole_tensors, s.attention_scale, s.activation_scale, s.loss_copies, s.split_loss_copies})
    if (!(x >= 0 && x < 1e6)) throw input_error("scales of activations must not be negative");
  if (!(s.selective_kept >= 0 && s.selective_kept <= 1)) throw input_error("selective_kept must be a share, 0 to 1");
}

namespace detail {

/// Bytes that a device keeps of a layer for `samples` samples of its own. Replicated are those that tensor parallelism does not
/// divide without sequence parallelism: around each all-reduced tensor two norm and layer inputs and half a tensor of mask (5
/// tensors of a GPT block).
[[nodiscard]] double kept_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d, std::int64_t samples,
                                const activation_style& style);

}  // namespace detail

/// Bytes that each device keeps of one layer from forward to backward for `samples` samples of its own, rounded up.
/// Tensor parallelism is with sequence parallelism, so it divides all that is kept, but with style.whole_inputs not a layer's
/// input under full recomputation; context parallelism divides the sequence.
/// Requires: the layer exists.
/// Source: Korthikanti et al. 2023, Table 2.
[[nodiscard]] inline bytes_t activation_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                              std::int64_t samples = 1, const activation_style& style = {}) {
  return detail::whole_bytes(detail::kept_bytes(chain, index, mode, d, samples, style));
}

/// Bytes that each device holds while it computes a layer, whatever is in flight: what recomputation brings back, and gradients
/// of half as many bytes as all its activations (the style's loss copies for layers that are not recomputable). Rounded
/// up.
/// Requires: the layer exists.
[[nodiscard]] inline bytes_t temporary_bytes(const layer_chain& chain, int index, recomputation mode, const degrees& d,
                                             std::int64_t samples = 1, const activation_style& style = {}) {
  const double kept = detail::kept_bytes(chain, index, mode, d, samples, style),
               all = detail::kept_bytes(chain, index, recomputation::none, d, samples, style);
  const double copies = d.tensor > 1 ? style.split_loss_copies : style.loss_copies;
  return detail::whole_bytes(all - kept + (at(chain.layers, index).recomputable ? 0.5 : copies) * all);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/memory/memory.ipp>
#endif
