// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// One of the loops that an operator is made of.
struct tensor_loop {
  std::int64_t size = 1;  ///< into how many equal parts it can be cut
  bool cut = true;        ///< false where the operator needs all of it at once, as the rows of a softmax

  friend bool operator==(const tensor_loop&, const tensor_loop&) = default;
};

/// An operator on whole tensors, and all that a distributed program needs to know of it: over which loops it runs, and which
/// dimensions of its inputs and its result follow them. Cutting a loop cuts what follows it; a loop that the result does not
/// follow is summed over, so cutting it leaves each device a part of the sum. An operator of one's own is a node with loops.
struct tensor_node {
  std::string name{};
  std::string op{};
  std::vector<int> inputs{};  ///< nodes before it
  std::vector<std::int64_t> shape{};
  std::vector<tensor_loop> loops{};
  std::vector<std::vector<int>> input_loops{};  ///< per input and dimension the loop that it follows, -1 for none
  std::vector<int> result_loops{};              ///< the same of the result
  /// Sets of inputs in which it is linear together: if they are parts of sums and the other inputs whole, so is its result.
  std::vector<std::vector<int>> linear{};
  std::optional<operator_shape> kernel{};  ///< what it launches; none: nothing
  int batch_dimension = 0;                 ///< of a placeholder
  int gradient_of = -1;                    ///< of what it is a gradient, or a part of one; -1: of nothing
  int segment = 0;                         ///< nodes of a segment are cut alike: see tensor_segments.hpp
  std::vector<std::int64_t> settings{};    ///< numbers that its kernel needs besides shapes: see who adds it

  friend bool operator==(const tensor_node&, const tensor_node&) = default;
};

/// Operators in an order in which they can run.
struct tensor_graph {
  std::vector<tensor_node> nodes{};
  number_format format = number_format::fp16;

  [[nodiscard]] int size() const { return static_cast<int>(nodes.size()); }
  [[nodiscard]] const tensor_node& at(int node) const { return hetsched::at(nodes, node); }
  friend bool operator==(const tensor_graph&, const tensor_graph&) = default;
};

/// Checks that a graph makes sense, as one is that the functions below made.
/// Throws: input_error that names the node, for a graph without nodes; an input that does not come before its reader, or that a
/// leaf has; shapes with sizes below 1 or more than 62 dimensions; loops with sizes below 1, or followed by a dimension that is
/// not there, also in an input; launches with sizes below 1 or amounts that are not finite; segments that are not numbered from
/// 0, and nodes that read another segment, but for borders, which have one input alone.
/// Complexity: O((nodes + edges) * dimensions).
void validate(const tensor_graph& graph);

/// Whether a node is read rather than computed.
[[nodiscard]] inline bool is_placeholder(const tensor_node& n) { return n.op == "placeholder"; }
[[nodiscard]] inline bool is_parameter(const tensor_node& n) { return n.op == "parameter"; }
[[nodiscard]] inline bool is_leaf(const tensor_node& n) { return is_placeholder(n) || is_parameter(n); }

/// Elements of a tensor.
/// Throws: input_error beyond 64 bits.
[[nodiscard]] inline std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t all = 1;
  for (const auto size : shape) all = checked_mul(all, size);
  return all;
}

[[nodiscard]] inline double tensor_bytes(const tensor_graph& graph, int node) {
  return static_cast<double>(elements_of(graph.at(node).shape)) * element_bytes(graph.format);
}

namespace detail {

[[nodiscard]] inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

[[nodiscard]] inline std::vector<int> count_up(std::size_t n, int from = 0) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), from);
  return all;
}

[[nodiscard]] std::vector<tensor_loop> loops_over(const std::vector<std::int64_t>& shape, bool cut_last = true);

int put(tensor_graph& graph, tensor_node node);

// What validate asks of a node by itself.
void expect_node(const tensor_node& n);

[[noreturn]] inline void refuse_shapes(const tensor_graph& graph, const std::string& name, const std::string& op,
                                       const std::vector<int>& inputs, const std::string& why) {
  std::string text = "operator " + name + " (" + op + "): " + why + ", found ";
  for (std::size_t i = 0; i < inputs.size(); ++i) text += (i == 0 ? "" : " and ") + shape_text(graph.at(inputs[i]).shape);
  throw input_error(text);
}

}  // namespace detail

/// Adds an input of the model. `batch_dimension`: the one that its samples lie along.
/// Returns: the new node, as all functions below.
/// Throws: input_error for sizes below 1, or a batch dimension that it does not have.
int add_placeholder(tensor_graph& graph, std::string name, std::vector<std::int64_t> shape, int batch_dimension = 0);

/// Adds weights.
inline int add_parameter(tensor_graph& graph, std::string name, std::vector<std::int64_t> shape) {
  return detail::put(graph, {.name = std::move(name), .op = "parameter", .shape = std::move(shape)});
}

/// The loops of a contraction, and which of them each dimension of its two inputs and of its result follows.
struct contraction_loops {
  std::vector<tensor_loop> loops;
  std::vector<int> left;
  std::vector<int> right;
  std::vector<int> result;
};

/// Adds the sum over the loops that the result does not follow of the product of two inputs: any product of matrices, with
/// batches or without.
/// Throws: input_error unless the sizes of the loops fit.
int add_contraction(tensor_graph& graph, std::string name, std::string op, int a, int b, contraction_loops over);

/// Adds the product (..., m, k)(..., k, n), or of their transposes in the last two dimensions. One of the two may lack the
/// leading dimensions.
/// Throws: input_error for shapes that do not fit.
int add_matmul(tensor_graph& graph, std::string name, int a, int b, bool transpose_a = false, bool transpose_b = false);

/// Adds an operator on each element of one or more inputs. Shapes are broadcast as in NumPy: lined up at the last dimension,
/// sizes of 1 repeated. `linear`: see tensor_node.
/// Throws: input_error for shapes that do not fit.
int add_elementwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                    std::vector<std::vector<int>> linear = {});

/// Adds an operator that needs whole rows along the last dimension. Inputs of fewer dimensions than the first are per column.
/// Throws: input_error for shapes that do not fit.
int add_rowwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                std::vector<std::vector<int>> linear = {});

inline int add_softmax(tensor_graph& graph, std::string name, int x) {
  return add_rowwise(graph, std::move(name), "softmax", {x});
}

/// Adds a layer norm over the last dimension; `weight` and `bias` of that size if given.
inline int add_layernorm(tensor_graph& graph, std::string name, std::vector<int> x_weight_bias) {
  return add_rowwise(graph, std::move(name), "layernorm", std::move(x_weight_bias));
}

/// Adds the rows of a table [v, h] that `ids` [...] name. Cutting the table's rows leaves each device the rows that it has, and
/// zeros: a part of a sum.
/// Throws: input_error unless the table is a matrix.
int add_embedding(tensor_graph& graph, std::string name, int ids, int table);

/// Adds the same elements in another shape. Dimensions that are merged or split can be cut along the first of them.
/// Throws: input_error unless the shapes have as many elements.
int add_reshape(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape);

/// Adds a tensor whose dimension d is dimension permutation[d] of x.
/// Throws: input_error unless it is a permutation of the dimensions.
int add_transpose(tensor_graph& graph, std::string name, int x, const std::vector<int>& permutation);

/// Adds the sum of x over the dimensions that `shape` lacks in front or has as 1; an empty shape sums to a scalar.
/// Throws: input_error unless x broadcasts from that shape.
int add_sum(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape = {}, std::string op = "sum");

/// Adds x repeated to a shape that it broadcasts to; nothing is launched.
int add_expand(tensor_graph& graph, std::string name, int x, const std::vector<std::int64_t>& shape);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/tensor_graph.ipp>
#endif
