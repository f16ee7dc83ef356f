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

// Adds the gradients of a node's inputs that are wanted, each by its operator's rule.
class gradient_rules {
 public:
  gradient_rules(tensor_graph& graph, gradient_sums& sums, const std::vector<char>& wanted, int node)
      : graph_(graph), sums_(sums), wanted_(wanted), node_(node), n_(graph.at(node)), dy_(sums.of(node)) {}

  void apply() {
    const auto& op = n_.op;
    if (op == "matmul") return matmul();
    if (op == "softmax") return add(0, [&] { return add_rowwise(graph_, name(0), "softmax_grad", {dy_, node_}, {{0}}); });
    if (op == "layernorm") return layernorm();
    if (op == "embedding") return embedding();
    if (op == "reshape") return add(0, [&] { return add_reshape(graph_, name(0), dy_, input(0).shape); });
    if (op == "transpose") return transpose();
    if (op == "sum") return add(0, [&] { return add_expand(graph_, name(0), dy_, input(0).shape); });
    if (is_border(n_)) return add(0, [&] { return add_border(graph_, name(0), dy_, input(0).segment); });
    if (op == "expand") return add_reduced(0, [&] { return dy_; });
    if (op == "conv2d") return convolution();
    if (op == "max_pool2d" || op == "avg_pool2d")
      return add(0, [&] { return add_pooling_gradient(graph_, name(0), node_, dy_); });
    if (op == "dispatch" || op == "combine") return experts();
    if (op == "neg" || op == "scale" || op == "identity" || op == "cast")
      return add(0, [&] { return add_elementwise(graph_, name(0), op, {dy_}, {{0}}); });
    if (is_one_of(op, unary_operators))
      return add(0, [&] { return add_elementwise(graph_, name(0), op + "_grad", {dy_, n_.inputs[0]}, {{0}}); });
    if (is_one_of(op, binary_operators)) return binary();
    throw input_error("operator " + n_.name + " (" + op + "): its gradient is not known");
  }

 private:
  [[nodiscard]] bool wants(std::size_t i) const { return at(wanted_, n_.inputs[i]) != 0; }
  [[nodiscard]] const tensor_node& input(std::size_t i) const { return graph_.at(n_.inputs[i]); }
  [[nodiscard]] std::string name(std::size_t i) const { return "d_" + input(i).name; }
  template <class Make>
  void add(std::size_t i, Make make) {
    if (wants(i)) sums_.add(n_.inputs[i], make());
  }
  template <class Make>
  void add_reduced(std::size_t i, Make make) {
    if (wants(i)) sums_.add_reduced(n_.inputs[i], make());
  }

  // The gradient of one factor is the product of the other with dy over the same loops.
  void matmul() {
    add(0, [&] {
      return add_contraction(
          graph_, name(0), "matmul", dy_, n_.inputs[1],
          {.loops = n_.loops, .left = n_.result_loops, .right = n_.input_loops[1], .result = n_.input_loops[0]});
    });
    add(1, [&] {
      return add_contraction(
          graph_, name(1), "matmul", n_.inputs[0], dy_,
          {.loops = n_.loops, .left = n_.input_loops[0], .right = n_.result_loops, .result = n_.input_loops[1]});
    });
  }
  void layernorm() {
    add(0, [&] {
      std::vector<int> inputs{dy_, n_.inputs[0]};
      if (n_.inputs.size() > 1) inputs.push_back(n_.inputs[1]);
      return add_rowwise(graph_, name(0), "layernorm_grad", std::move(inputs), {{0}});
    });
    if (n_.inputs.size() > 1)
      add_reduced(1, [&] { return add_rowwise(graph_, name(1), "layernorm_weight_grad", {dy_, n_.inputs[0]}, {{0}}); });
    if (n_.inputs.size() > 2) add_reduced(2, [&] { return dy_; });
  }
  void embedding() {
    add(1, [&] {
      tensor_node gradient{
          .name = name(1), .op = "embedding_grad", .inputs = {dy_, n_.inputs[0]}, .shape = input(1).shape, .loops = n_.loops};
      gradient.input_loops = {n_.result_loops, n_.input_loops[0]};
      gradient.result_loops = n_.input_loops[1];
      gradient.linear = {{0}};
      gradient.kernel = n_.kernel;
      return put(graph_, std::move(gradient));
    });
  }
  void transpose() {
    std::vector<int> back(n_.result_loops.size());
    for (std::size_t d = 0; d < back.size(); ++d) at(back, n_.result_loops[d]) = static_cast<int>(d);
    add(0, [&] { return add_transpose(graph_, name(0), dy_, back); });
  }
  void convolution() {
    for (const int i : {0, 1}) add(as_size(i), [&] { return add_convolution_gradient(graph_, name(as_size(i)), node_, dy_, i); });
  }
  void experts() {
    const bool out = n_.op == "dispatch";
    const int routes = n_.inputs[1], gates = n_.inputs.size() > 2 ? n_.inputs[2] : -1;
    add(0, [&] {
      return out ? add_combine(graph_, name(0), dy_, routes, gates) : add_dispatch(graph_, name(0), dy_, routes, gates);
    });
    if (gates >= 0)
      add(2, [&] { return add_gate_gradient(graph_, name(2), out ? n_.inputs[0] : dy_, out ? dy_ : n_.inputs[0], routes); });
  }
  void binary() {
    const bool sums = n_.op == "add" || n_.op == "sub";
    for (const auto i : {std::size_t{0}, std::size_t{1}})
      add_reduced(i, [&] {
        if (sums) return i == 0 || n_.op == "add" ? dy_ : add_elementwise(graph_, name(i), "neg", {dy_}, {{0}});
        if (n_.op == "mul") return add_elementwise(graph_, name(i), "mul", {dy_, n_.inputs[1 - i]}, linear_inputs("mul"));
        return add_elementwise(graph_, name(i), n_.op + "_grad_" + std::to_string(i), {dy_, n_.inputs[0], n_.inputs[1]}, {{0}});
      });
  }

  tensor_graph& graph_;
  gradient_sums& sums_;
  const std::vector<char>& wanted_;
  int node_;
  tensor_node n_;  // a copy: nodes are added
  int dy_;
};

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
    gradient_rules(graph, sums, wanted, i).apply();
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
