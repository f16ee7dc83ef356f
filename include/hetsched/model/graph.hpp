// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/index.hpp>
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
  [[nodiscard]] const graph_node& at(int node) const { return hetsched::at(nodes, node); }
  friend bool operator==(const operator_graph&, const operator_graph&) = default;
};

/// Checks that a graph makes sense.
/// Throws: input_error, naming the node, unless there is a node, inputs and owners come before their readers, what is kept
/// comes no later, amounts are finite and not negative, and sizes of operators are at least 1.
/// Complexity: O(nodes + edges).
void validate(const operator_graph& graph);

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
[[nodiscard]] double weight_traffic(const graph_node& n);

/// What a node launches for so many samples. Weights are read once for all of them.
/// Throws: input_error for samples below 1 and sizes beyond 64 bits.
[[nodiscard]] operator_shape scaled(const graph_node& n, std::int64_t samples);

/// The node whose memory a node's result lies in: itself, unless it is a view.
/// Complexity: O(chain of views).
[[nodiscard]] inline int storage_of(const operator_graph& graph, int node) {
  while (!graph.at(node).launches && !graph.at(node).inputs.empty()) node = graph.at(node).inputs.front();
  return node;
}

/// Per node, whether a gradient flows into its result: it, or something it reads, has parameters.
/// Complexity: O(nodes + edges).
[[nodiscard]] std::vector<char> needs_gradient(const operator_graph& graph);

/// The gradients that a product's backward computes: each takes as many FLOPs as the product.
struct product_gradients {
  int operands = 0;  ///< of operands that are results of nodes; attention counts as two products of two
  bool weights = false;
};

/// The gradients of a node's product; `needs`: needs_gradient() of the graph.
/// Complexity: O(inputs).
[[nodiscard]] product_gradients gradients_of(const operator_graph& graph, const std::vector<char>& needs, int node);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/graph.ipp>
#endif
