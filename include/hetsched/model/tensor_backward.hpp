// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/model/tensor_graph.hpp>

namespace hetsched {

/// What a program has to compute.
struct tensor_goal {
  int loss = -1;                                 ///< -1: none
  std::vector<std::pair<int, int>> gradients{};  ///< parameters, each with the node of its gradient
  std::vector<int> whole{};                      ///< nodes of which every device has all in the end

  friend bool operator==(const tensor_goal&, const tensor_goal&) = default;
};

namespace detail {

// Elementwise operators by name; the graph's reader knows them too.
inline constexpr std::array<std::string_view, 15> unary_operators{"relu",   "gelu",  "silu",     "sigmoid", "tanh",
                                                                  "exp",    "log",   "sqrt",     "abs",     "neg",
                                                                  "square", "scale", "identity", "dropout", "cast"};
inline constexpr std::array<std::string_view, 7> binary_operators{"add", "sub", "mul", "div", "maximum", "minimum", "pow"};

template <std::size_t N>
[[nodiscard]] constexpr bool is_one_of(std::string_view op, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

// Inputs in which an elementwise operator is linear.
[[nodiscard]] std::vector<std::vector<int>> linear_inputs(std::string_view op);

}  // namespace detail

/// Adds the backward of a graph: the gradient of node `loss` in every parameter that it depends on. Gradients are named after
/// what they are of, with "d_" before it; parts of a gradient that are added up also have numbers.
/// Requires: loss is a node of the graph.
/// Returns: the loss and each parameter's gradient, in the order of the graph; the loss alone if it depends on no parameter.
/// Throws: input_error unless the loss is a scalar, and for operators whose gradient is not known.
/// Complexity: O(nodes + edges).
tensor_goal add_backward(tensor_graph& graph, int loss);

/// The backward of a stage: what comes in and out of it, and its gradients, by node.
struct stage_goal {
  int input = -1, output = -1;
  int output_gradient = -1;  ///< a placeholder
  int input_gradient = -1;   ///< -1: the output does not depend on the input, or nobody asks
  tensor_goal goal{};        ///< output and input gradient whole on every device, and a gradient for each parameter
};

/// Adds the backward of a stage: from the gradient of `output`, a new placeholder, the gradients of all parameters that it
/// depends on, and that of the placeholder `input` unless `first`, a stage whose input is data.
/// Requires: a placeholder and a node of the graph.
/// Throws: input_error for operators whose gradient is not known.
/// Complexity: O(nodes + edges).
stage_goal add_stage_backward(tensor_graph& graph, int input, int output, bool first = false);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/tensor_backward.ipp>
#endif
