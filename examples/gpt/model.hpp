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
#include <gpt/shapes.hpp>

namespace gpt {

namespace detail {
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

}  // namespace gpt
