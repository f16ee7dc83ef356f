// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_segments.hpp>

namespace hetsched::detail {

// Loops of dispatch and combine: groups, tokens of a group, experts, width.
[[nodiscard]] inline std::vector<tensor_loop> expert_loops(const tensor_graph& graph, int routes, std::int64_t width) {
  const auto& shape = graph.at(routes).shape;
  return {{shape[0]}, {shape[1]}, {shape[2]}, {width}};
}

// Moves the rows of all slots.
[[nodiscard]] inline operator_shape expert_kernel(const std::vector<std::int64_t>& slots, const std::vector<std::int64_t>& tokens,
                                                  number_format format) {
  auto op = embedding(elements_of(slots) / slots.back(), slots.back(), format);
  op.traffic_bytes = (static_cast<double>(elements_of(slots)) + static_cast<double>(elements_of(tokens))) * element_bytes(format);
  return op;
}

inline std::int64_t capacity_of(const tensor_graph& graph, const tensor_node& n, int routes) {
  while (is_border(graph.at(routes))) routes = graph.at(routes).inputs[0];
  const auto& r = graph.at(routes);
  if (r.op != "route") refuse_shapes(graph, n.name, n.op, n.inputs, "routes of a route were expected");
  return r.settings[1];
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE int add_route(tensor_graph& graph, std::string name, int gates, std::int64_t choices, std::int64_t capacity) {
  tensor_node n{.name = std::move(name), .op = "route", .inputs = {gates}};
  n.shape = graph.at(gates).shape;
  if (n.shape.size() != 3 || choices < 1 || capacity < 1 || choices > n.shape[2])
    detail::refuse_shapes(graph, n.name, n.op, n.inputs,
                          "gates [groups, tokens, experts], and as many choices at most as there are experts, were expected");
  n.loops = {{n.shape[0]}, {n.shape[1], false}, {n.shape[2], false}};
  n.input_loops = {{0, 1, 2}};
  n.result_loops = {0, 1, 2};
  n.settings = {choices, capacity};
  n.kernel = softmax(checked_mul(n.shape[0], n.shape[1]), n.shape[2], graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_dispatch(tensor_graph& graph, std::string name, int x, int routes, int gates) {
  tensor_node n{.name = std::move(name), .op = "dispatch", .inputs = {x, routes}, .linear = {{0}}};
  const auto capacity = detail::capacity_of(graph, n, routes);
  const auto &tokens = graph.at(x).shape, &route = graph.at(routes).shape;
  if (gates >= 0) {
    n.inputs.push_back(gates);
    n.linear.push_back({2});
  }
  if (tokens.size() != 3 || tokens[0] != route[0] || tokens[1] != route[1] || (gates >= 0 && graph.at(gates).shape != route))
    detail::refuse_shapes(graph, n.name, n.op, n.inputs, "tokens [groups, tokens, width] and their routes were expected");
  n.shape = {route[2], route[0], capacity, tokens[2]};
  n.loops = detail::expert_loops(graph, routes, tokens[2]);
  n.input_loops = {{0, 1, 3}, {0, 1, 2}};
  if (gates >= 0) n.input_loops.push_back({0, 1, 2});
  n.result_loops = {2, 0, -1, 3};
  n.kernel = detail::expert_kernel(n.shape, tokens, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_combine(tensor_graph& graph, std::string name, int y, int routes, int gates) {
  tensor_node n{.name = std::move(name), .op = "combine", .inputs = {y, routes}, .linear = {{0}}};
  const auto capacity = detail::capacity_of(graph, n, routes);
  const auto &slots = graph.at(y).shape, &route = graph.at(routes).shape;
  if (gates >= 0) {
    n.inputs.push_back(gates);
    n.linear.push_back({2});
  }
  if (slots.size() != 4 || slots[0] != route[2] || slots[1] != route[0] || slots[2] != capacity ||
      (gates >= 0 && graph.at(gates).shape != route))
    detail::refuse_shapes(graph, n.name, n.op, n.inputs,
                          "slots [experts, groups, capacity, width] and their routes were expected");
  n.shape = {route[0], route[1], slots[3]};
  n.loops = detail::expert_loops(graph, routes, slots[3]);
  n.input_loops = {{2, 0, -1, 3}, {0, 1, 2}};
  if (gates >= 0) n.input_loops.push_back({0, 1, 2});
  n.result_loops = {0, 1, 3};
  n.kernel = detail::expert_kernel(slots, n.shape, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_gate_gradient(tensor_graph& graph, std::string name, int tokens, int slots, int routes) {
  tensor_node n{.name = std::move(name),
                .op = "gate_grad",
                .inputs = {tokens, slots, routes},
                .shape = graph.at(routes).shape,
                .loops = detail::expert_loops(graph, routes, graph.at(tokens).shape[2]),
                .input_loops = {{0, 1, 3}, {2, 0, -1, 3}, {0, 1, 2}},
                .result_loops = {0, 1, 2},
                .linear = {{0}, {1}}};
  n.kernel = detail::expert_kernel(graph.at(slots).shape, graph.at(tokens).shape, graph.format);
  return detail::put(graph, std::move(n));
}

}  // namespace hetsched
