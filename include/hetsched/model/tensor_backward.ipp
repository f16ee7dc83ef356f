// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>
#include <hetsched/model/tensor_segments.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<std::vector<int>> linear_inputs(std::string_view op) {
  if (op == "add" || op == "sub") return {{0, 1}};
  if (op == "mul") return {{0}, {1}};
  if (op == "div" || op == "neg" || op == "scale" || op == "identity" || op == "cast") return {{0}};
  return {};
}

// Adds up the gradients that reach each node, from the last to the first.
class gradient_sums {
 public:
  explicit gradient_sums(tensor_graph& graph) : graph_(&graph), of_(graph.nodes.size(), -1) {}

  [[nodiscard]] int of(int node) const { return at(of_, node); }
  void add(int node, int gradient) {
    auto& sum = at(of_, node);
    sum =
        sum < 0 ? gradient : add_elementwise(*graph_, "d_" + graph_->at(node).name, "add", {sum, gradient}, linear_inputs("add"));
  }
  // A gradient with the shape of what it was broadcast to.
  void add_reduced(int node, int gradient) {
    const auto shape = graph_->at(node).shape;
    if (graph_->at(gradient).shape != shape) gradient = add_sum(*graph_, "d_" + graph_->at(node).name, gradient, shape, "sum_to");
    add(node, gradient);
  }

 private:
  tensor_graph* graph_;
  std::vector<int> of_;
};

inline void add_gradients_of(tensor_graph& graph, gradient_sums& sums, const std::vector<char>& wanted, int node) {
  const auto n = graph.at(node);  // a copy: nodes are added
  const int dy = sums.of(node);
  const auto wants = [&](std::size_t i) { return at(wanted, n.inputs[i]) != 0; };
  const auto name = [&](std::size_t i) { return "d_" + graph.at(n.inputs[i]).name; };
  if (n.op == "matmul") {
    // The gradient of one factor is the product of the other with dy over the same loops.
    if (wants(0))
      sums.add(
          n.inputs[0],
          add_contraction(graph, name(0), "matmul", dy, n.inputs[1],
                          {.loops = n.loops, .left = n.result_loops, .right = n.input_loops[1], .result = n.input_loops[0]}));
    if (wants(1))
      sums.add(
          n.inputs[1],
          add_contraction(graph, name(1), "matmul", n.inputs[0], dy,
                          {.loops = n.loops, .left = n.input_loops[0], .right = n.result_loops, .result = n.input_loops[1]}));
  } else if (n.op == "softmax") {
    if (wants(0)) sums.add(n.inputs[0], add_rowwise(graph, name(0), "softmax_grad", {dy, node}, {{0}}));
  } else if (n.op == "layernorm") {
    if (wants(0)) {
      std::vector<int> inputs{dy, n.inputs[0]};
      if (n.inputs.size() > 1) inputs.push_back(n.inputs[1]);
      sums.add(n.inputs[0], add_rowwise(graph, name(0), "layernorm_grad", std::move(inputs), {{0}}));
    }
    if (n.inputs.size() > 1 && wants(1))
      sums.add_reduced(n.inputs[1], add_rowwise(graph, name(1), "layernorm_weight_grad", {dy, n.inputs[0]}, {{0}}));
    if (n.inputs.size() > 2 && wants(2)) sums.add_reduced(n.inputs[2], dy);
  } else if (n.op == "embedding") {
    if (!wants(1)) return;
    tensor_node gradient{.name = name(1),
                         .op = "embedding_grad",
                         .inputs = {dy, n.inputs[0]},
                         .shape = graph.at(n.inputs[1]).shape,
                         .loops = n.loops};
    gradient.input_loops = {n.result_loops, n.input_loops[0]};
    gradient.result_loops = n.input_loops[1];
    gradient.linear = {{0}};
    gradient.kernel = n.kernel;
    sums.add(n.inputs[1], put(graph, std::move(gradient)));
  } else if (n.op == "reshape") {
    if (wants(0)) sums.add(n.inputs[0], add_reshape(graph, name(0), dy, graph.at(n.inputs[0]).shape));
  } else if (n.op == "transpose") {
    std::vector<int> back(n.result_loops.size());
    for (std::size_t d = 0; d < back.size(); ++d) at(back, n.result_loops[d]) = static_cast<int>(d);
    if (wants(0)) sums.add(n.inputs[0], add_transpose(graph, name(0), dy, back));
  } else if (n.op == "sum") {
    if (wants(0)) sums.add(n.inputs[0], add_expand(graph, name(0), dy, graph.at(n.inputs[0]).shape));
  } else if (is_border(n)) {
    if (wants(0)) sums.add(n.inputs[0], add_border(graph, name(0), dy, graph.at(n.inputs[0]).segment));
  } else if (n.op == "expand") {
    if (wants(0)) sums.add_reduced(n.inputs[0], dy);
  } else if (n.op == "conv2d") {
    if (wants(0)) sums.add(n.inputs[0], add_convolution_gradient(graph, name(0), node, dy, 0));
    if (wants(1)) sums.add(n.inputs[1], add_convolution_gradient(graph, name(1), node, dy, 1));
  } else if (n.op == "max_pool2d" || n.op == "avg_pool2d") {
    if (wants(0)) sums.add(n.inputs[0], add_pooling_gradient(graph, name(0), node, dy));
  } else if (n.op == "dispatch" || n.op == "combine") {
    const bool out = n.op == "dispatch";
    const int routes = n.inputs[1], gates = n.inputs.size() > 2 ? n.inputs[2] : -1;
    if (wants(0))
      sums.add(n.inputs[0],
               out ? add_combine(graph, name(0), dy, routes, gates) : add_dispatch(graph, name(0), dy, routes, gates));
    if (gates >= 0 && wants(2))
      sums.add(gates, add_gate_gradient(graph, name(2), out ? n.inputs[0] : dy, out ? dy : n.inputs[0], routes));
  } else if (n.op == "neg" || n.op == "scale" || n.op == "identity" || n.op == "cast") {
    if (wants(0)) sums.add(n.inputs[0], add_elementwise(graph, name(0), n.op, {dy}, {{0}}));
  } else if (is_one_of(n.op, unary_operators)) {
    if (wants(0)) sums.add(n.inputs[0], add_elementwise(graph, name(0), n.op + "_grad", {dy, n.inputs[0]}, {{0}}));
  } else if (n.op == "add" || n.op == "sub") {
    if (wants(0)) sums.add_reduced(n.inputs[0], dy);
    if (wants(1)) sums.add_reduced(n.inputs[1], n.op == "add" ? dy : add_elementwise(graph, name(1), "neg", {dy}, {{0}}));
  } else if (n.op == "mul") {
    for (const auto i : {std::size_t{0}, std::size_t{1}})
      if (wants(i))
        sums.add_reduced(n.inputs[i], add_elementwise(graph, name(i), "mul", {dy, n.inputs[1 - i]}, linear_inputs("mul")));
  } else if (is_one_of(n.op, binary_operators)) {
    for (const auto i : {std::size_t{0}, std::size_t{1}})
      if (wants(i))
        sums.add_reduced(n.inputs[i], add_elementwise(graph, name(i), n.op + "_grad_" + std::to_string(i),
                                                      {dy, n.inputs[0], n.inputs[1]}, {{0}}));
  } else {
    throw input_error("operator " + n.name + " (" + n.op + "): its gradient is not known");
  }
}

/// Gives nodes from `first` on names of their own: of several that are called d_x the last one, which is all of the gradient,
/// stays that; those before it are d_x_1, d_x_2 and so on.
inline void tell_apart(tensor_graph& graph, std::size_t first) {
  std::set<std::string> given, taken;
  for (std::size_t i = 0; i < first; ++i) given.insert(graph.nodes[i].name);
  std::map<std::string, std::vector<std::size_t>> called;
  for (std::size_t i = first; i < graph.nodes.size(); ++i) called[graph.nodes[i].name].push_back(i);
  for (const auto& [name, nodes] : called) taken.insert(name);
  taken.insert(given.begin(), given.end());
  for (const auto& [name, nodes] : called) {
    const bool clashes = given.contains(name);
    int number = 0;
    for (std::size_t k = 0; k + (clashes ? 0 : 1) < nodes.size(); ++k) {
      auto own = name;
      while (taken.contains(own)) own = name + "_" + std::to_string(++number);
      taken.insert(own);
      graph.nodes[nodes[k]].name = own;
    }
  }
}

/// Adds the gradients of all nodes up to `last` that depend on wanted leaves, from its own: node `seed`.
inline gradient_sums add_gradients(tensor_graph& graph, const std::vector<char>& wanted, int last, int seed) {
  const auto first = as_size(seed);
  gradient_sums sums(graph);
  sums.add(last, seed);
  for (int i = last; i >= 0; --i) {
    if (!at(wanted, i) || sums.of(i) < 0 || is_leaf(graph.at(i))) continue;
    const auto before = graph.nodes.size();
    add_gradients_of(graph, sums, wanted, i);
    // What flows back over a border belongs to the other side.
    const int segment = graph.at(is_border(graph.at(i)) ? graph.at(i).inputs[0] : i).segment;
    for (auto node = before; node < graph.nodes.size(); ++node) {
      graph.nodes[node].gradient_of = i;
      graph.nodes[node].segment = segment;
    }
  }
  tell_apart(graph, first);
  return sums;
}

/// Which nodes depend on a parameter or on one of some leaves.
[[nodiscard]] inline std::vector<char> trained_nodes(const tensor_graph& graph, const std::vector<int>& leaves = {}) {
  std::vector<char> wanted(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    const auto& n = graph.at(i);
    at(wanted, i) = is_parameter(n) || std::find(leaves.begin(), leaves.end(), i) != leaves.end() ||
                    std::any_of(n.inputs.begin(), n.inputs.end(), [&](int j) { return at(wanted, j) != 0; });
  }
  return wanted;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE tensor_goal add_backward(tensor_graph& graph, int loss) {
  HETSCHED_EXPECTS(loss >= 0 && loss < graph.size());
  if (elements_of(graph.at(loss).shape) != 1)
    throw input_error("operator " + graph.at(loss).name + ": the loss must be a scalar, found " +
                      detail::shape_text(graph.at(loss).shape));
  const int forward = graph.size();
  const auto wanted = detail::trained_nodes(graph);
  tensor_goal goal{.loss = loss};
  if (!at(wanted, loss)) return goal;
  // The gradient of the loss in itself.
  const int one = detail::put(graph, {.name = "d_" + graph.at(loss).name, .op = "ones", .shape = graph.at(loss).shape});
  graph.nodes.back().gradient_of = loss;
  graph.nodes.back().segment = graph.at(loss).segment;
  const auto sums = detail::add_gradients(graph, wanted, loss, one);
  for (int i = 0; i < forward; ++i)
    if (is_parameter(graph.at(i)) && sums.of(i) >= 0) goal.gradients.emplace_back(i, sums.of(i));
  return goal;
}

HETSCHED_INLINE stage_goal add_stage_backward(tensor_graph& graph, int input, int output, bool first) {
  HETSCHED_EXPECTS(input >= 0 && input < graph.size() && is_placeholder(graph.at(input)) && output >= 0 && output < graph.size());
  const int forward = graph.size();
  const auto wanted = detail::trained_nodes(graph, first ? std::vector<int>{} : std::vector<int>{input});
  stage_goal stage{.input = input, .output = output};
  stage.output_gradient = add_placeholder(graph, "d_" + graph.at(output).name, graph.at(output).shape);
  graph.nodes.back().segment = graph.at(output).segment;
  stage.goal.whole.push_back(output);
  const auto sums = detail::add_gradients(graph, wanted, output, stage.output_gradient);
  for (int i = 0; i < forward; ++i)
    if (is_parameter(graph.at(i)) && sums.of(i) >= 0) stage.goal.gradients.emplace_back(i, sums.of(i));
  if (!first && sums.of(input) >= 0) stage.goal.whole.push_back(stage.input_gradient = sums.of(input));
  return stage;
}

}  // namespace hetsched
