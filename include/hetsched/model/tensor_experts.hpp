// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/tensor_backward_test.cpp.

#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/model/tensor_graph.hpp>

// A mixture of experts in groups of tokens, as GShard has it: every expert takes up to `capacity` tokens of each group. Cut by
// groups, a device routes its tokens; cut by experts, it computes its experts; an all-to-all lies between.

namespace hetsched {

/// Adds the places of tokens at experts: of gates [groups, tokens, experts], each token's `choices` largest; the result [groups,
/// tokens, experts] is 1 for the first slot of the expert in its group, 2 for the second and so on, 0 where the token does not go
/// there, or there is no slot left. First choices of all tokens are served before second ones. Nothing is differentiated here.
/// settings: choices and capacity.
/// Throws: input_error for shapes that do not fit, numbers below 1, or more choices than experts.
int add_route(tensor_graph& graph, std::string name, int gates, std::int64_t choices, std::int64_t capacity);

/// Adds tokens [groups, tokens, width] as their routes send them: [experts, groups, capacity, width], zeros in empty slots. With
/// `gates` [groups, tokens, experts], each times its gate. Tokens that are cut leave each device the slots of its own: a part of
/// a sum.
/// Throws: input_error for shapes that do not fit.
int add_dispatch(tensor_graph& graph, std::string name, int x, int routes, int gates = -1);

/// Adds what experts made of tokens, back at these: of y [experts, groups, capacity, width] the sum over a token's slots, each
/// times its gate where there are `gates` [groups, tokens, experts]: [groups, tokens, width].
/// Throws: input_error for shapes that do not fit.
int add_combine(tensor_graph& graph, std::string name, int y, int routes, int gates = -1);

/// Adds the gradient of gates: of tokens and slots, one of them a gradient, and routes, the products along the width.
/// Requires: as of a combine or a dispatch with gates.
int add_gate_gradient(tensor_graph& graph, std::string name, int tokens, int slots, int routes);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/tensor_experts.ipp>
#endif
