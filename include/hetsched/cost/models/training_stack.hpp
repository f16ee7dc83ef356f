// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/network/send_mode.hpp>
#include <hetsched/cost/operators/tile_constants.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/model/elementwise_fusion.hpp>

namespace hetsched {

/// What the trainer that runs a plan does with it, as far as costs go: the library's own runtime by default.
struct training_stack {
  std::string name = "hetsched";
  /// Bytes for each parameter of a model that computes in bf16, or in any other 16 bits, in fp16 and in fp32. At ZeRO stage 3 the
  /// runtime has the weights of the layer at work and of the next one, and its parts of both, which it copies.
  training_memory bf16{.working_bytes = 2 * 2, .working_part_bytes = 2 * 2};
  training_memory fp16{.working_bytes = 2 * 2, .working_part_bytes = 2 * 2};
  training_memory fp32{
      .weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8, .working_bytes = 2 * 4, .working_part_bytes = 2 * 4};
  activation_style activations{};
  memory_overheads overheads = fitted_overheads;
  elementwise_fusion fusion = elementwise_fusion::grouped;
  flash_kernels flash = flash_kernels::newest;  ///< which FlashAttention it calls
  bool autocast = false;  ///< torch.autocast: norms and what blocks add up are in fp32; weights of more than 2 bytes are rounded
                          ///< for each product
  /// Linear layers of blocks multiply in fp8, forward and backward, as Transformer Engine has them: what products read is rounded
  /// first and kept so for backward; attention, embedding, head and all else stay in 16 bits. Where a device does not multiply
  /// fp8, in 16 bits.
  bool fp8_products = false;
  double host_launch_s = 0;     ///< the host needs this for each kernel
  double update_bandwidth = 1;  ///< share of the memory's bandwidth that the optimizer's step sustains
  double gather_overlap = 0;  ///< share of gathers of weights, at ZeRO stage 3, that goes on behind computing if that is as long
  double reduction_overlap = 0;  ///< the same of gradients' reductions in backward, from ZeRO stage 2 on
  double update_overlap = 0;     ///< of gradients' reductions at ZeRO stages 0 and 1: behind the backward of the last microbatch
  send_mode sends = send_mode::asynchronous;  ///< what evaluate does not see: iteration_under does

  friend bool operator==(const training_stack&, const training_stack&) = default;
};

/// Throws: input_error for a stack without a name, and for bytes, shares or seconds that make no sense.
void validate(const training_stack& s);

/// The stacks that the library knows by name, hetsched first.
/// Complexity: built on first use, O(1) afterwards.
[[nodiscard]] const std::vector<training_stack>& training_stacks();

/// The one of that name; none if there is none.
[[nodiscard]] std::optional<training_stack> find_training_stack(std::string_view name);

/// Bytes for each parameter of a model whose weights have parameter_bytes, 2 or 4, and which computes in that precision; with
/// products in fp8 each weight has two bytes more, one as it is and one transposed, from forward to backward.
[[nodiscard]] inline training_memory memory_in(const training_stack& s, precision computed, int parameter_bytes) {
  auto m = parameter_bytes == 4 ? s.fp32 : computed == precision::fp16 ? s.fp16 : s.bf16;
  if (s.fp8_products && parameter_bytes != 4) m.fp8_bytes = 2;
  return m;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/training_stack.ipp>
#endif
