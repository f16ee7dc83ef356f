// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// One operator of a model, for one sample.
struct graph_node {
  std::string name{};                  ///< for people only, with '/' between scopes
  std::string type{};                  ///< what it is called where it comes from: MatMul, LayerNormalization ...
  operator_shape op{};                 ///< what it launches
  bool launches = true;                ///< false for views, which cost nothing: of their first input
  std::int64_t parameters = 0;         ///< that it owns
  std::int64_t shared_parameters = 0;  ///< that it reads and another node owns
  bytes_t output_bytes = 0;            ///< of its result, as a reader in another stage would get it
  bytes_t saved_bytes = 0;    ///< kept for its backward besides the results in `kept`: masks, statistics, the model's inputs
  std::vector<int> inputs{};  ///< nodes whose results it reads, each before it; without the model's inputs
  std::vector<int> kept{};    ///< nodes whose results its backward needs, itself perhaps; each counts once in a layer
  std::vector<int> owners{};  ///< nodes before it that own its shared parameters; empty if unknown

  friend bool operator==(const graph_node&, const graph_node&) = default;
};

/// A model as its operators in an order in which they can run, for one sample.
struct operator_graph {
  std::vector<graph_node> nodes{};
  int parameter_bytes = 2;  ///< of one parameter and of one element of an activation
  int heads = 0;            ///< attention heads; 0 if unknown

  [[nodiscard]] int size() const { return static_cast<int>(nodes.size()); }
  [[nodiscard]] const graph_node& at(int node) const { return nodes[static_cast<std::size_t>(node)]; }
  friend bool operator==(const operator_graph&, const operator_graph&) = default;
};

/// Checks that a graph makes sense.
/// Throws: input_error, naming the node, unless there is a node, inputs and owners come before their readers, what is kept
/// comes no later, amounts are finite and not negative, and sizes of operators are at least 1.
/// Complexity: O(nodes + edges).
inline void validate(const operator_graph& graph) {
  if (graph.nodes.empty()) throw input_error("the model has no operator");
  if (graph.parameter_bytes < 1) throw input_error("parameter_bytes must be at least 1");
  if (graph.heads < 0) throw input_error("heads must not be negative");
  for (int i = 0; i < graph.size(); ++i) {
    const auto& n = graph.at(i);
    const auto require = [&](bool holds, const char* what) {
      if (!holds) throw input_error("operator " + std::to_string(i) + " (" + (n.name.empty() ? n.type : n.name) + "): " + what);
    };
    const auto within = [&](const std::vector<int>& list, int end) {
      return std::all_of(list.begin(), list.end(), [&](int j) { return j >= 0 && j < end; });
    };
    require(within(n.inputs, i), "inputs must be operators before it");
    require(within(n.owners, i), "owners must be operators before it");
    require(within(n.kept, i + 1), "kept results must be its own or of operators before it");
    require(n.parameters >= 0 && n.shared_parameters >= 0, "parameters must not be negative");
    require(n.output_bytes >= 0 && n.saved_bytes >= 0, "bytes must not be negative");
    require(n.op.batch >= 1 && n.op.m >= 1 && n.op.n >= 1 && n.op.k >= 1, "sizes must be at least 1");
    require(n.op.traffic_bytes >= 0 && n.op.traffic_bytes <= std::numeric_limits<double>::max(),
            "traffic_bytes must be finite and not negative");
    require(n.op.causal_share > 0 && n.op.causal_share <= 1, "causal_share must be in (0, 1]");
  }
}

/// FLOPs of the matrix products of an operator. What a causal mask hides counts too, as in the usual definition of MFU.
[[nodiscard]] constexpr double product_flops(const operator_shape& op) {
  const double one =
      static_cast<double>(op.batch) * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k);
  return op.kind == operator_kind::gemm ? 2 * one : op.kind == operator_kind::flash_attention ? 4 * one : 0;
}

/// Whether a node is compute-intensive: products, convolutions, attention.
[[nodiscard]] inline bool has_product(const graph_node& n) { return n.launches && product_flops(n.op) > 0; }

/// Whether a node multiplies by weights, as the right operand of its product.
[[nodiscard]] inline bool multiplies_weights(const graph_node& n) {
  return n.launches && n.op.kind == operator_kind::gemm && (n.parameters > 0 || n.shared_parameters > 0);
}

/// Bytes of the right operand of a node's product where it is weights, else 0. Products of a batch may share their weights,
/// so it is no more than the node has weights or moves bytes.
[[nodiscard]] inline double weight_traffic(const graph_node& n) {
  if (!multiplies_weights(n)) return 0;
  const double operand = static_cast<double>(n.op.batch) * static_cast<double>(n.op.n) * static_cast<double>(n.op.k);
  const double weights = static_cast<double>(n.parameters) + static_cast<double>(n.shared_parameters);
  return std::min(std::min(operand, weights) * element_bytes(n.op.format), n.op.traffic_bytes);
}

/// What a node launches for so many samples. Weights are read once for all of them.
/// Throws: input_error for samples below 1 and sizes beyond 64 bits.
[[nodiscard]] inline operator_shape scaled(const graph_node& n, std::int64_t samples) {
  if (samples < 1) throw input_error("samples must be at least 1");
  auto op = n.op;
  const double weights = weight_traffic(n);
  op.traffic_bytes = weights + (op.traffic_bytes - weights) * static_cast<double>(samples);
  const bool many = op.kind == operator_kind::flash_attention || (op.kind == operator_kind::gemm && !multiplies_weights(n));
  auto& size = many ? op.batch : op.m;
  size = checked_mul(size, samples);
  op.batched = op.batched || (many && op.kind == operator_kind::gemm);
  return op;
}

/// The node whose memory a node's result lies in: itself, unless it is a view.
/// Complexity: O(chain of views).
[[nodiscard]] inline int storage_of(const operator_graph& graph, int node) {
  while (!graph.at(node).launches && !graph.at(node).inputs.empty()) node = graph.at(node).inputs.front();
  return node;
}

/// Per node, whether a gradient flows into its result: it, or something it reads, has parameters.
/// Complexity: O(nodes + edges).
[[nodiscard]] inline std::vector<char> needs_gradient(const operator_graph& graph) {
  std::vector<char> needs(graph.nodes.size());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const auto& n = graph.nodes[i];
    needs[i] = n.parameters > 0 || n.shared_parameters > 0 ||
               std::any_of(n.inputs.begin(), n.inputs.end(), [&](int j) { return needs[static_cast<std::size_t>(j)] != 0; });
  }
  return needs;
}

/// The gradients that a product's backward computes: each takes as many FLOPs as the product.
struct product_gradients {
  int operands = 0;  ///< of operands that are results of nodes; attention counts as two products of two
  bool weights = false;
};

/// The gradients of a node's product; `needs`: needs_gradient() of the graph.
/// Complexity: O(inputs).
[[nodiscard]] inline product_gradients gradients_of(const operator_graph& graph, const std::vector<char>& needs, int node) {
  const auto& n = graph.at(node);
  if (!has_product(n) || needs[static_cast<std::size_t>(node)] == 0) return {};
  const auto wanted =
      std::count_if(n.inputs.begin(), n.inputs.end(), [&](int j) { return needs[static_cast<std::size_t>(j)] != 0; });
  if (multiplies_weights(n)) return {wanted > 0 ? 1 : 0, true};
  return {n.op.kind == operator_kind::flash_attention ? 2 : static_cast<int>(std::min<std::ptrdiff_t>(wanted, 2)), false};
}

}  // namespace hetsched
