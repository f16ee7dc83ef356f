// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_graph.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<tensor_loop> loops_over(const std::vector<std::int64_t>& shape, bool cut_last) {
  std::vector<tensor_loop> loops;
  for (const auto size : shape) loops.push_back({size});
  if (!cut_last && !loops.empty()) loops.back().cut = false;
  return loops;
}

HETSCHED_INLINE int put(tensor_graph& graph, tensor_node node) {
  const auto refuse = [&](const std::string& why) { throw input_error("operator " + node.name + " (" + node.op + "): " + why); };
  for (const int i : node.inputs)
    if (i < 0 || i >= graph.size()) refuse("its inputs must be operators before it");
  for (const auto size : node.shape)
    if (size < 1) refuse("the sizes of its shape must be at least 1, found " + shape_text(node.shape));
  static_cast<void>(elements_of(node.shape));
  graph.nodes.push_back(std::move(node));
  return graph.size() - 1;
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

}  // namespace hetsched::detail

namespace hetsched {

namespace detail {

HETSCHED_INLINE void expect_node(const tensor_node& n) {
  constexpr std::size_t most = 62;  // forms of a tensor are bits
  const auto require = [&](bool holds, const char* expected) {
    if (!holds) throw input_error("operator " + n.name + " (" + n.op + "): expected " + expected);
  };
  const auto within = [](const std::vector<int>& list, int low, std::size_t end) {
    return std::all_of(list.begin(), list.end(), [&](int j) { return j >= low && (j < 0 || as_size(j) < end); });
  };
  require(n.shape.size() <= most, "at most 62 dimensions");
  for (const auto size : n.shape) require(size >= 1, "sizes of at least 1");
  static_cast<void>(elements_of(n.shape));
  for (const auto& loop : n.loops) require(loop.size >= 1, "loops of at least 1");
  require(!is_leaf(n) || n.inputs.empty(), "no inputs of what is read");
  require(n.input_loops.size() <= n.inputs.size() && (n.loops.empty() || n.input_loops.size() == n.inputs.size()),
          "loops for each input");
  for (const auto& follows : n.input_loops)
    require(follows.size() <= most && within(follows, -1, n.loops.size()), "dimensions of inputs to follow its loops");
  require(n.result_loops.size() <= n.shape.size() && within(n.result_loops, -1, n.loops.size()),
          "dimensions of the result to follow its loops");
  for (const auto& set : n.linear) require(within(set, 0, n.inputs.size()), "to be linear in inputs that it has");
  require(n.segment >= 0, "a segment of at least 0");
  require(n.batch_dimension >= 0 && as_size(n.batch_dimension) < std::max<std::size_t>(1, n.shape.size()),
          "a batch dimension that it has");
  require(n.op != "border" || n.inputs.size() == 1, "one input of a border");
  if (!n.kernel) return;
  const auto& op = *n.kernel;
  require(op.batch >= 1 && op.m >= 1 && op.n >= 1 && op.k >= 1, "sizes of at least 1 of what it launches");
  expect_natural(op.traffic_bytes, "operator " + n.name + ": traffic_bytes");
  expect_natural(op.causal_share, "operator " + n.name + ": causal_share");
}

}  // namespace detail

HETSCHED_INLINE void validate(const tensor_graph& graph) {
  if (graph.nodes.empty()) throw input_error("the graph has no operator");
  for (int i = 0; i < graph.size(); ++i) {
    const auto& n = graph.at(i);
    detail::expect_node(n);
    const auto require = [&](bool holds, const char* expected) {
      if (!holds) throw input_error("operator " + n.name + " (" + n.op + "): expected " + expected);
    };
    require(n.segment < std::max(graph.size(), 16), "no more segments than operators, or 16");
    for (const int input : n.inputs) {
      require(input >= 0 && input < i, "inputs that are operators before it");
      require(n.op == "border" ? graph.at(input).shape == n.shape : graph.at(input).segment == n.segment,
              n.op == "border" ? "its input's shape" : "inputs of its own segment");
    }
    for (std::size_t k = 0; k < n.input_loops.size(); ++k)
      require(n.input_loops[k].size() <= graph.at(n.inputs[k]).shape.size(),
              "its inputs to have the dimensions that follow loops");
  }
}

HETSCHED_INLINE int add_placeholder(tensor_graph& graph, std::string name, std::vector<std::int64_t> shape, int batch_dimension) {
  if (batch_dimension < 0 || (batch_dimension > 0 && as_size(batch_dimension) >= shape.size()))
    throw input_error("operator " + name + " (placeholder): it has no batch dimension " + std::to_string(batch_dimension));
  return detail::put(
      graph, {.name = std::move(name), .op = "placeholder", .shape = std::move(shape), .batch_dimension = batch_dimension});
}

HETSCHED_INLINE int add_contraction(tensor_graph& graph, std::string name, std::string op, int a, int b, contraction_loops over) {
  tensor_node n{.name = std::move(name),
                .op = std::move(op),
                .inputs = {a, b},
                .loops = std::move(over.loops),
                .input_loops = {std::move(over.left), std::move(over.right)},
                .result_loops = std::move(over.result),
                .linear = {{0}, {1}}};
  for (const int loop : n.result_loops) n.shape.push_back(n.loops.at(as_size(loop)).size);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& shape = graph.at(n.inputs[i]).shape;
    bool fits = shape.size() == n.input_loops[i].size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d) fits = n.loops.at(as_size(n.input_loops[i][d])).size == shape[d];
    if (!fits) detail::refuse_shapes(graph, n.name, n.op, n.inputs, "the sizes do not fit");
  }
  n.kernel = detail::product_kernel(n, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_matmul(tensor_graph& graph, std::string name, int a, int b, bool transpose_a, bool transpose_b) {
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
  return add_contraction(graph, std::move(name), "matmul", a, b,
                         {.loops = std::move(loops),
                          .left = dimensions(leading_a, m, k, transpose_a),
                          .right = dimensions(leading_b, k, n, transpose_b),
                          .result = dimensions(leading, m, n, false)});
}

HETSCHED_INLINE int add_elementwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                                    std::vector<std::vector<int>> linear) {
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
      if (shape[d] != at(n.shape, dims[d])) dims[d] = -1;
    n.input_loops.push_back(std::move(dims));
  }
  n.kernel = elementwise(elements_of(n.shape), static_cast<int>(n.inputs.size()), 1, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_rowwise(tensor_graph& graph, std::string name, std::string op, std::vector<int> inputs,
                                std::vector<std::vector<int>> linear) {
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

HETSCHED_INLINE int add_embedding(tensor_graph& graph, std::string name, int ids, int table) {
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

HETSCHED_INLINE int add_reshape(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape) {
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

HETSCHED_INLINE int add_transpose(tensor_graph& graph, std::string name, int x, const std::vector<int>& permutation) {
  const auto& shape = graph.at(x).shape;
  const auto dimensions = detail::count_up(shape.size());
  if (!std::is_permutation(permutation.begin(), permutation.end(), dimensions.begin(), dimensions.end()))
    detail::refuse_shapes(graph, name, "transpose", {x}, "expected a permutation of the dimensions");
  tensor_node n{.name = std::move(name), .op = "transpose", .inputs = {x}, .loops = detail::loops_over(shape), .linear = {{0}}};
  n.input_loops = {dimensions};
  n.result_loops = permutation;
  for (const int d : permutation) n.shape.push_back(at(shape, d));
  n.kernel = elementwise(elements_of(shape), 1, 1, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_sum(tensor_graph& graph, std::string name, int x, std::vector<std::int64_t> shape, std::string op) {
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

HETSCHED_INLINE int add_expand(tensor_graph& graph, std::string name, int x, const std::vector<std::int64_t>& shape) {
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
    if (from.size() > shape.size() || (from[d] != 1 && from[d] != at(shape, dims[d])))
      detail::refuse_shapes(graph, n.name, n.op, n.inputs, "expected a shape that it broadcasts to");
    if (from[d] != at(shape, dims[d])) dims[d] = -1;
  }
  n.input_loops = {std::move(dims)};
  return detail::put(graph, std::move(n));
}

}  // namespace hetsched
