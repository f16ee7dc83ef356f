// SPDX-License-Identifier: Apache-2.0
// What there is to know of a GPT without its layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include <gpt/config.hpp>

namespace gpt {

/// Embedding, blocks, head.
[[nodiscard]] inline int layer_count(const config& m) { return m.layers + 2; }

namespace detail {
inline void require_layer(const config& m, int layer) {
  validate(m);
  if (layer < 0 || layer >= layer_count(m))
    throw hetsched::input_error("gpt: layer " + std::to_string(layer) + " of " + std::to_string(layer_count(m)) +
                                " does not exist");
}
}  // namespace detail

/// Of the layer's whole output, for microbatches of so many samples; throws like make_layer. Tokens and targets are {samples *
/// sequence, 1}.
[[nodiscard]] inline hetsched::tensor_shape shape_after(const config& m, int layer, int samples = 1) {
  detail::require_layer(m, layer);
  if (samples < 1) throw hetsched::input_error("gpt: a microbatch has at least one sample");
  return {static_cast<std::size_t>(samples) * static_cast<std::size_t>(m.sequence),
          static_cast<std::size_t>(layer <= m.layers ? m.hidden : m.vocab)};
}

/// How a stage of these degrees lays out what blocks pass on, [samples * sequence, hidden]: samples over data, the sequence over
/// context and tensor; trainer_options::boundary_layout.
[[nodiscard]] inline hetsched::layout boundary_layout(const config& m, const hetsched::tensor_shape& whole,
                                                      const hetsched::degrees& d) {
  const auto rows = static_cast<std::int64_t>(whole.at(0)), columns = static_cast<std::int64_t>(whole.at(1));
  return {.mesh = {d.data, d.context, d.tensor},
          .dimensions = {{.extent = rows / m.sequence, .axes = {hetsched::data_axis}},
                         {.extent = m.sequence, .axes = {hetsched::context_axis, hetsched::tensor_axis}},
                         {.extent = columns}}};
}

/// Parameters that are one: equal at first, and equal as long as both are updated with the sum of their gradients.
[[nodiscard]] inline std::vector<hetsched::parameter_tie> ties(const config& m) {
  if (!m.tied) return {};
  return {{hetsched::parameter_id{.layer = 0, .number = 0}, hetsched::parameter_id{.layer = m.layers + 1, .number = 0}}};
}

/// What planners know of the model.
[[nodiscard]] inline hetsched::transformer to_transformer(const config& m, int parameter_bytes = 4) {
  validate(m);
  return {.layers = m.layers,
          .hidden = m.hidden,
          .heads = m.heads,
          .kv_heads = m.key_heads(),
          .ffn_hidden = m.ffn_width(),
          .vocab = m.vocab,
          .sequence = m.sequence,
          .parameter_bytes = parameter_bytes,
          .experts = m.experts,
          .experts_per_token = m.experts > 0 ? m.experts_per_token : 0,
          .moe_every = m.moe_every,
          .positions = m.positions == position_kind::learned ? m.sequence : 0,
          .norm_vectors = m.norm == norm_kind::rms ? 1 : 2,
          .gated_mlp = m.activation == activation_kind::swiglu,
          .qkv_bias = m.bias,
          .output_bias = m.bias,
          .mlp_bias = m.bias,
          .tied_embeddings = m.tied,
          .dropout = false};
}

/// Numbers that training changes; a tied table counts once.
[[nodiscard]] inline std::int64_t parameter_count(const config& m) {
  std::int64_t count = 0;
  for (const auto& l : hetsched::make_chain(to_transformer(m)).layers) count += l.parameters;
  return count;
}

}  // namespace gpt
