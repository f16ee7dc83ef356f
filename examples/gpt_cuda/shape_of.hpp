// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpt/config.hpp>
#include <gpt_cuda/description.hpp>

namespace gpt_cuda {

/// `half`: products of bf16 numbers; `half_boundaries`: what lies between layers.
[[nodiscard]] inline shape shape_of(const gpt::config& m, bool half, bool half_boundaries = false) {
  return {.layers = m.layers,
          .hidden = m.hidden,
          .heads = m.heads,
          .kv_heads = m.key_heads(),
          .ffn = m.ffn_width(),
          .sequence = m.sequence,
          .vocab = m.vocab,
          .experts = m.experts,
          .experts_per_token = m.experts_per_token,
          .moe_every = m.moe_every,
          .rms = m.norm == gpt::norm_kind::rms,
          .gated = m.activation == gpt::activation_kind::swiglu,
          .rotary = m.positions == gpt::position_kind::rotary,
          .bias = m.bias,
          .tied = m.tied,
          .half = half,
          .half_boundaries = half_boundaries};
}

}  // namespace gpt_cuda
