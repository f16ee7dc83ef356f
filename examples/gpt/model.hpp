// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>

#include <gpt/block.hpp>
#include <gpt/config.hpp>
#include <gpt/cross_entropy.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>

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

/// What a rank of a tensor axis with these shares has. Throws input_error for what the axes cannot share.
template <class Real>
sequence_slices<Real> slices_of(const config& m, const hetsched::device_axis<Real>& axis, int contexts, int experts,
                                const std::vector<double>& shares) {
  if (std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end()) {
    validate(m, axis.size(), contexts, experts);
    return sequence_slices<Real>(axis);
  }
  validate(m, 1, contexts, experts);
  if (shares.size() != static_cast<std::size_t>(axis.size()))
    throw hetsched::input_error("gpt: " + std::to_string(shares.size()) + " shares for " + std::to_string(axis.size()) +
                                " tensor ranks");
  const auto points = hetsched::cut_points(m.key_heads(), shares);
  std::vector<std::int64_t> key_heads;
  for (std::size_t r = 0; r < shares.size(); ++r) key_heads.push_back(points[r + 1] - points[r]);
  validate(m, key_heads, contexts);
  const auto own = static_cast<std::size_t>(axis.rank());
  return {axis,
          {.first = static_cast<std::size_t>(points[own]),
           .last = static_cast<std::size_t>(points[own + 1]),
           .parts = static_cast<std::size_t>(m.key_heads())}};
}
}  // namespace detail

/// Layer 0 is the embedding, 1 to `layers` are blocks, then comes the head (the last norm and the logits). Its parameters
/// depend on config and layer only; a rank of a tensor axis has its parts of them. Throws input_error for a config or layer that
/// makes no sense, or that the axes cannot share. Ranks of a context axis have a slice of every sequence each, those of an expert
/// axis experts of their own. Under selective
/// recomputation blocks do not keep their attention's weights; full is the stage's affair. `shares`: of the tensor axis, as whole
/// heads of keys and values by largest remainder; empty: equal ones.
template <class Real>
[[nodiscard]] hetsched::any_layer<tensor<Real>> make_layer(const config& m, int layer,
                                                           const hetsched::device_axis<Real>& axis = {},
                                                           hetsched::recomputation recompute = hetsched::recomputation::none,
                                                           const hetsched::device_axis<Real>& context = {},
                                                           const hetsched::device_axis<Real>& expert = {},
                                                           const std::vector<double>& shares = {}) {
  detail::require_layer(m, layer);
  const auto slices = detail::slices_of<Real>(m, axis, context.size(), expert.size(), shares);
  const auto contexts = static_cast<std::size_t>(context.size()), own = static_cast<std::size_t>(context.rank());
  if (layer == 0)
    return embedding<Real>(m, layer_random(m.seed, 0), own * slices.parts() + slices.part(), contexts * slices.parts());
  if (layer <= m.layers) {
    auto here = m;
    here.sequence /= context.size();
    const bool recomputes = recompute == hetsched::recomputation::selective;
    if (m.has_experts(layer - 1))
      return block<Real, experts<Real>>(here, layer_random(m.seed, layer), slices, recomputes, ring<Real>(context),
                                        expert_axis<Real>(expert));
    return block<Real>(here, layer_random(m.seed, layer), slices, recomputes, ring<Real>(context));
  }
  return head<Real>(m, layer_random(m.seed, m.tied ? 0 : layer));
}

/// For a stage on the devices of a group.
template <class Real, class Communicator>
[[nodiscard]] hetsched::any_layer<tensor<Real>> make_layer(const config& m, int layer,
                                                           const hetsched::stage_group<tensor<Real>, Communicator>& group,
                                                           hetsched::recomputation recompute = hetsched::recomputation::none) {
  return make_layer<Real>(m, layer, group.tensor(), recompute, group.context(), group.expert(), group.tensor_shares());
}

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
          .rms_norm = m.norm == norm_kind::rms,
          .gated_mlp = m.activation == activation_kind::swiglu,
          .bias = m.bias,
          .qkv_bias = m.bias,
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
