// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
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
  [[nodiscard]] const tensor_node& at(int node) const { return nodes[static_cast<std::size_t>(node)]; }
  friend bool operator==(const tensor_graph&, const tensor_graph&) = default;
};

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

[[nodiscard]] inline std::vector<tensor_loop> loops_over(const std::vector<std::int64_t>& shape, bool cut_last = true) {
  std::vector<tensor_loop> loops;
  for (const auto size : shape) loops.push_back({size});
  if (!cut_last && !loops.empty()) loops.back().cut = false;
  return loops;
}

inline int put(tensor_graph& graph, tensor_node node) {
  const auto refuse = [&](const std::string& why) { throw input_error("operator " + node.name + " (" + node.op + "): " + why); };
  for (const int i : node.inputs)
    if (i < 0 || i >= graph.size()) refuse("its inputs must be operators before it");
  for (const auto size : node.shape)
    if (size < 1) refuse("the sizes of its shape must be at least 1, found " + shape_text(node.shape));
  static_cast<void>(elements_of(node.shape));
  graph.nodes.push_back(std::move(node));
  return graph.size() - 1;
}

[[noreturn]] inline void refuse_shapes(const tensor_graph& graph, const std::string& name, const std::string& op,
                                       const std::vector<int>& inputs, const std::string& why) {
  std::string text = "operator " + name + " (" + op + "): " + why + ", found ";
  for (std::size_t i = 0; i < inputs.size(); ++i) text += (i == 0 ? "" : " and ") + shape_text(graph.at(inputs[i]).shape);
  throw input_error(text);
}

// The product over loops by what follows them: batch, rows, columns, reduction.
[[nodiscard]] inline operator_shape product_kernel(const tensor_node& n, number_format format) {
  std::int64_t batch = 1, rows = 1, columns = 1, reduced = 1;
  const auto follows = [](const std::vector<int>& dims, int loop) {
    return std::find(dims.begin(), dims.end(), loop) != dims.end();
  };
  for (std::size_t i = 0; i < n.loops.size(); ++i) {
    const int loop = static_cast<int>(i);
    const bool left = follows(n.input_loops[0], loop), right = follows(n.input_loops[1], loop),
               out = follows(n.result_loops, loop);
    auto& size = left && right ? (out ? batch : reduced) : left ? rows : columns;
    size = checked_mul(size, n.loops[i].size);
  }
  return batch > 1 ? batched_gemm(batch, rows, columns, reduced, format) : gemm(rows, columns, reduced, format);
}

}  // namespace detail

/// Adds an input of the model. `batch_dimension`: the one that its samples lie along.
/// Returns: the new node, as all functions below.
/// Throws: input_error for sizes below 1, or a batch dimension that it does not have.
inline int add_placeholder(tensor_graph& graph, std::string name, std::vector<std::int64_t> shape, int batch_dimension = 0) {
  if (batch_dimension < 0 || (batch_dimension > 0 && static_cast<std::size_t>(batch_dimension) >= shape.size()))
    throw input_error("operator " + name + " (placeholder): it has no batch dimension " + std::to_string(batch_dimension));
  return detail::put(
      graph, {.name = std::move(name), .op = "placeholder", .shape = std::move(shape), .batch_dimension = batch_dimension});
}

/// Adds weights.
inline int add_parameter(tensor_graph& graph, std::string name, std::vector<std::int64_t> shape) {
  return detail::put(graph, {.name = std::move(name), .op = "parameter", .shape = std::move(shape)});
}

/// Adds the sum over the loops that the result does not follow of the product of two inputs: any product of matrices, with
/// batches or without. `left`, `right`, `result`: the loop that each dimension follows.
/// Throws: input_error unless the sizes of the loops fit.
inline int add_contraction(tensor_graph& graph, std::string name, std::string op, int a, int b, std::vector<tensor_loop> loops,
                           std::vector<int> left, std::vector<int> right, std::vector<int> result) {
  tensor_node n{.name = std::move(name),
                .op = std::move(op),
                .inputs = {a, b},
                .loops = std::move(loops),
                .input_loops = {std::move(left), std::move(right)},
                .result_loops = std::move(result),
                .linear = {{0}, {1}}};
  for (const int loop : n.result_loops) n.shape.push_back(n.loops.at(static_cast<std::size_t>(loop)).size);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& shape = graph.at(n.inputs[i]).shape;
    bool fits = shape.size() == n.input_loops[i].size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d)
      fits = n.loops.at(static_cast<std::size_t>(n.input_loops[i][d])).size == shape[d];
    if (!fits) detail::refuse_shapes(graph, n.name, n.op, n.inputs, "the sizes do not fit");
  }
  n.kernel = detail::product_kernel(n, graph.format);
  return detail::put(graph, std::move(n));
}

/// Adds the product (..., m, k)(..., k, n), or of their transposes in the last two dimensions. One of the two may lack the
/// leading dimensions.
/// Throws: input_error for shapes that do not fit.
inline int add_matmul(tensor_graph& graph, std::string name, int a, int b, bool transpose_a = false, bool transpose_b = false) {
  const auto &left = graph.at(a).shape, &right = graph.at(b).shape;
  const auto refuse = [&](const char* why) { detail::refuse_shapes(graph, name, "matmul", {a, b}, why); };
  if (left.size() < 2 || right.size() < 2) refuse("expected matrices");
  const auto leading_a = left.size() - 2, leading_b = right.size() - 2, leading = std::max(leading_a, leading_b);
  if (leading_a != leading_b && std::min(leading_a, leading_b) != 0)
    refuse("expected as many leading dimensions, or none in one");
  const auto& outer = leading_a >= leading_b ? left : right;
  std::vector<tensor_loop> loops;
  for (std::size_t d = 0; d < leading; ++d) loops.push_back({outer[d]});
  const int m = static_cast<int>(leading), k = m + 1, n = m + 2;
  const auto rows = left[leading_a + (transpose_a ? 1 : 0)], reduced = left[leading_a + (transpose_a ? 0 : 1)],
             columns = right[leading_b + (transpose_b ? 0 : 1)];
  if (reduced != right[leading_b + (transpose_b ? 1 : 0)]) refuse("the inner sizes differ");
  if (leading_a == leading_b && !std::equal(left.begin(), left.end() - 2, right.begin())) refuse("the leading sizes differ");
  loops.insert(loops.end(), {{rows}, {reduced}, {columns}});
  const auto dimensions = [&](std::size_t own, int first, int second, bool swapped) {
    auto dims = detail::count_up(own);
    dims.push_back(swapped ? second : first);
    dims.push_back(swapped ? first : second);
    return dims;
  };
  return add_contraction(graph, std::move(name), "matmul", a, b, std::move(loops), dimensions(leading_a, m, k, transpose_a),
                         dimensions(leading_b, k, n, transpose_b), dimensions(leading, m, n, false));
}

/// Adds an operator on each element of one or more inputs. Shapes are broadcast as in NumPy: lined up at the last dimension,
/// sizes of 1 repeated. `linear`: see tensor_node.
/// Throws: input_error for shapes that do not fit.
inline int add_elementwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                           std::vector<std::vector<int>> linear = {}) {
  tensor_node n{.name = std::move(name), .op = std::move(op), .inputs = std::move(inputs), .linear = std::move(linear)};
  for (const int i : n.inputs) {
    const auto& shape = graph.at(i).shape;
    if (shape.size() > n.shape.size()) n.shape.insert(n.shape.begin(), shape.size() - n.shape.size(), 1);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      auto& size = n.shape[n.shape.size() - shape.size() + d];
      if (size != shape[d] && size != 1 && shape[d] != 1)
        detail::refuse_shapes(graph, n.name, n.op, n.inputs, "shapes that broadcast were expected");
      size = std::max(size, shape[d]);
    }
  }
  n.loops = detail::loops_over(n.shape);
  n.result_loops = detail::count_up(n.shape.size());
  for (const int i : n.inputs) {
    const auto& shape = graph.at(i).shape;
    auto dims = detail::count_up(shape.size(), static_cast<int>(n.shape.size() - shape.size()));
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != n.shape[static_cast<std::size_t>(dims[d])]) dims[d] = -1;
    n.input_loops.push_back(std::move(dims));
  }
  n.kernel = elementwise(elements_of(n.shape), static_cast<int>(n.inputs.size()), 1, graph.format);
  return detail::put(graph, std::move(n));
}

/// Adds an operator that needs whole rows along the last dimension. Inputs of fewer dimensions than the first are per column.
/// Throws: input_error for shapes that do not fit.
inline int add_rowwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                       std::vector<std::vector<int>> linear = {}) {
  const auto shape = graph.at(inputs.front()).shape;
  if (shape.empty()) detail::refuse_shapes(graph, name, op, inputs, "expected rows");
  for (const int i : inputs) {
    const auto& other = graph.at(i).shape;
    if (other.empty() || other.size() > shape.size() || !std::equal(other.rbegin(), other.rend(), shape.rbegin()))
      detail::refuse_shapes(graph, name, op, inputs, "expected shapes that end alike");
  }
  const int node = add_elementwise(graph, std::move(name), std::move(op), std::move(inputs), std::move(linear));
  auto& n = graph.nodes.back();
  n.loops.back().cut = false;
  const auto rows = elements_of(shape) / shape.back();
  n.kernel = n.op.starts_with("softmax") ? softmax(rows, shape.back(), graph.format) : norm(rows, shape.back(), graph.format);
  return node;
}

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
inline int add_embedding(tensor_graph& graph, std::string name, int ids, int table) {
  if (graph.at(table).shape.size() != 2)
    detail::refuse_shapes(graph, name, "embedding", {ids, table}, "expected a table of rows");
  const auto& shape = graph.at(ids).shape;
  const auto width = graph.at(table).shape[1];
  const int loops = static_cast<int>(shape.size());
  tensor_node n{
      .name = std::move(name), .op = "embedding", .inputs = {ids, table}, .shape = shape, .loops = detail::loops_over(shape)};
  n.loops.insert(n.loops.end(), {{graph.at(table).shape[0]}, {width}});
  n.input_loops = {detail::count_up(shape.size()), {loops, loops + 1}};
  n.shape.push_back(width);
  n.result_loops = detail::count_up(shape.size());
  n.result_loops.push_back(loops + 1);
  n.linear = {{1}};
  n.kernel = embedding(elements_of(shape), width, graph.format);
  return detail::put(graph, std::move(n));
}

/// Adds the same elements in another shape. Dimensions that are merged or split can be cut along the first of them.
/// Throws: input_error unless the shapes have as many elements.
inline int add_reshape(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape) {
  const auto from = graph.at(x).shape;
  if (elements_of(from) != elements_of(shape))
    throw input_error("operator " + name + " (reshape): expected " + std::to_string(elements_of(from)) + " elements as " +
                      detail::shape_text(from) + " has, found " + detail::shape_text(shape));
  tensor_node n{.name = std::move(name), .op = "reshape", .inputs = {x}, .shape = std::move(shape), .linear = {{0}}};
  std::vector<int> in(from.size(), -1);
  n.result_loops.assign(n.shape.size(), -1);
  for (std::size_t i = 0, o = 0; i < from.size() && o < n.shape.size();) {
    // The shortest groups of dimensions of both that have as many elements.
    const auto first_in = i, first_out = o;
    auto left = from[i++], right = n.shape[o++];
    while (left != right) {
      if (left < right)
        left *= from[i++];
      else
        right *= n.shape[o++];
    }
    in[first_in] = n.result_loops[first_out] = static_cast<int>(n.loops.size());
    n.loops.push_back({std::gcd(from[first_in], n.shape[first_out])});
  }
  n.input_loops = {std::move(in)};
  return detail::put(graph, std::move(n));
}

/// Adds a tensor whose dimension d is dimension permutation[d] of x.
/// Throws: input_error unless it is a permutation of the dimensions.
inline int add_transpose(tensor_graph& graph, std::string name, int x, const std::vector<int>& permutation) {
  const auto& shape = graph.at(x).shape;
  const auto dimensions = detail::count_up(shape.size());
  if (!std::is_permutation(permutation.begin(), permutation.end(), dimensions.begin(), dimensions.end()))
    detail::refuse_shapes(graph, name, "transpose", {x}, "expected a permutation of the dimensions");
  tensor_node n{.name = std::move(name), .op = "transpose", .inputs = {x}, .loops = detail::loops_over(shape), .linear = {{0}}};
  n.input_loops = {dimensions};
  n.result_loops = permutation;
  for (const int d : permutation) n.shape.push_back(shape[static_cast<std::size_t>(d)]);
  n.kernel = elementwise(elements_of(shape), 1, 1, graph.format);
  return detail::put(graph, std::move(n));
}

/// Adds the sum of x over the dimensions that `shape` lacks in front or has as 1; an empty shape sums to a scalar.
/// Throws: input_error unless x broadcasts from that shape.
inline int add_sum(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape = {}, std::string op = "sum") {
  const auto& from = graph.at(x).shape;
  tensor_node n{.name = std::move(name),
                .op = std::move(op),
                .inputs = {x},
                .shape = std::move(shape),
                .loops = detail::loops_over(from),
                .linear = {{0}}};
  n.input_loops = {detail::count_up(from.size())};
  const auto lacking = from.size() - std::min(from.size(), n.shape.size());
  for (std::size_t d = 0; d < n.shape.size(); ++d) {
    if (n.shape.size() > from.size() || (n.shape[d] != 1 && n.shape[d] != from[lacking + d]))
      detail::refuse_shapes(graph, n.name, n.op, n.inputs, "a shape that does not broadcast to it was asked for");
    n.result_loops.push_back(n.shape[d] == from[lacking + d] ? static_cast<int>(lacking + d) : -1);
  }
  n.kernel = elementwise(elements_of(from), 1, 0, graph.format);
  return detail::put(graph, std::move(n));
}

/// Adds x repeated to a shape that it broadcasts to; nothing is launched.
inline int add_expand(tensor_graph& graph, std::string name, int x, const std::vector<std::int64_t>& shape) {
  const auto& from = graph.at(x).shape;
  tensor_node n{.name = std::move(name),
                .op = "expand",
                .inputs = {x},
                .shape = shape,
                .loops = detail::loops_over(shape),
                .linear = {{0}}};
  n.result_loops = detail::count_up(shape.size());
  auto dims = detail::count_up(from.size(), static_cast<int>(shape.size() - std::min(shape.size(), from.size())));
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from.size() > shape.size() || (from[d] != 1 && from[d] != shape[static_cast<std::size_t>(dims[d])]))
      detail::refuse_shapes(graph, n.name, n.op, n.inputs, "expected a shape that it broadcasts to");
    if (from[d] != shape[static_cast<std::size_t>(dims[d])]) dims[d] = -1;
  }
  n.input_loops = {std::move(dims)};
  return detail::put(graph, std::move(n));
}

}  // namespace hetsched
