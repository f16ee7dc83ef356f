// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

// route: where each token goes, see add_route.
template <class Tensor>
void compute_routes(const tensor_node& node, const Tensor& gates, Tensor& routes) {
  using element = typename tensor_traits<Tensor>::element;
  const auto shape = shape_of(gates);
  const std::size_t tokens = shape[1], experts = shape[2];
  const auto* const gate = tensor_traits<Tensor>::data(gates);
  auto* const out = tensor_traits<Tensor>::data(routes);
  std::fill(out, out + elements(routes), element{0});
  std::vector<std::size_t> order(experts);
  std::vector<std::int64_t> taken(experts);
  for (std::size_t group = 0; group < shape[0]; ++group) {
    std::fill(taken.begin(), taken.end(), 0);
    for (std::int64_t choice = 0; choice < node.settings[0]; ++choice)
      for (std::size_t token = 0; token < tokens; ++token) {
        const std::size_t first = (group * tokens + token) * experts;
        for (std::size_t e = 0; e < experts; ++e) order[e] = e;
        const auto chosen = order.begin() + choice;
        std::nth_element(order.begin(), chosen, order.end(), [&](std::size_t a, std::size_t b) {
          return gate[first + a] != gate[first + b] ? gate[first + a] > gate[first + b] : a < b;
        });
        if (taken[*chosen] < node.settings[1]) out[first + *chosen] = static_cast<element>(++taken[*chosen]);
      }
  }
}

// dispatch, combine and gate_grad: add(token, slot, gate) for every element of a token and of a slot that it has.
template <class Tensor>
void compute_experts(const tensor_node& node, std::span<const Tensor* const> in, Tensor& result) {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;
  const bool out = node.op == "dispatch", to_gates = node.op == "gate_grad";
  const Tensor &routes = to_gates ? *in[2] : *in[1], &slots = out ? result : to_gates ? *in[1] : *in[0];
  const auto shape = shape_of(routes), held = shape_of(slots);
  const std::size_t capacity = held[2], width = held[3];
  const auto *const route = traits::data(routes), *const gates = !to_gates && in.size() > 2 ? traits::data(*in[2]) : nullptr;
  auto* const made = traits::data(result);
  std::fill(made, made + elements(result), element{0});
  for (std::size_t group = 0; group < shape[0]; ++group)
    for (std::size_t token = 0; token < shape[1]; ++token)
      for (std::size_t expert = 0; expert < shape[2]; ++expert) {
        const std::size_t at_gate = (group * shape[1] + token) * shape[2] + expert;
        const auto slot = static_cast<std::size_t>(route[at_gate]);
        if (slot == 0) continue;
        const std::size_t at_token = (group * shape[1] + token) * width;
        const std::size_t at_slot = ((expert * shape[0] + group) * capacity + slot - 1) * width;
        const element gate = gates != nullptr ? gates[at_gate] : element{1};
        const auto* const from = traits::data(*in[0]);
        for (std::size_t i = 0; i < width; ++i)
          if (to_gates)
            made[at_gate] += from[at_token + i] * traits::data(*in[1])[at_slot + i];
          else if (out)
            made[at_slot + i] += gate * from[at_token + i];
          else
            made[at_token + i] += gate * from[at_slot + i];
      }
}

}  // namespace hetsched::detail
