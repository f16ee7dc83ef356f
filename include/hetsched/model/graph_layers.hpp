// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/model/graph.hpp>
#include <hetsched/model/graph_analysis.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/repeated_modules.hpp>

namespace hetsched {

/// How a graph is cut into layers.
struct graph_layer_options {
  int products = 3;        ///< compute-intensive operators that a repeated module has at least: z in HARP sec. 5.1
  int layers = 64;         ///< about so many layers are wanted; 0: repeated modules, and what lies between them, stay whole
  double tolerance = 0.5;  ///< by which a layer's FLOPs may exceed an equal share of all (Alpa: 0.5)
};

/// A graph's layers.
struct graph_layers {
  layer_chain chain{};                      ///< amounts per sample; tensor_reduce_bytes and context_gather_bytes are not known:
                                            ///< 0, so cost models must keep tensor and context degrees at 1
  std::vector<layer_range> operators_of{};  ///< each layer's operators, in order
  std::vector<int> kind{};                  ///< first layer with equal operators: one measurement or price serves all of a kind
  std::vector<repeated_module> modules{};   ///< in operators

  friend bool operator==(const graph_layers&, const graph_layers&) = default;
};

namespace detail {

// Sums the amounts of runs of operators.
class layer_sums {
 public:
  explicit layer_sums(const operator_graph& graph)
      : graph_(graph),
        needs_(needs_gradient(graph)),
        cores_(attention_cores(graph)),
        seen_(graph.nodes.size(), -1),
        owned_(seen_) {}

  [[nodiscard]] layer operator()(layer_range range);

 private:
  void add_products(layer& l, int i) const {
    const double flops = product_flops(graph_.at(i).op);
    if (!has_product(graph_.at(i))) return;
    const auto gradients = gradients_of(graph_, needs_, i);
    l.forward_flops += flops;
    l.backward_flops += flops * (gradients.operands + (gradients.weights ? 1 : 0));
    if (gradients.weights) l.weight_backward_flops += flops;
    if (at(cores_, i) != 0) l.selective_flops += flops;
  }

  const operator_graph& graph_;
  std::vector<char> needs_, cores_;
  std::vector<int> seen_, owned_;
  int stamp_ = -1;
};

}  // namespace detail

/// Cuts a graph into layers. Runs of operators that the model repeats become modules (find_repeated_modules). Each module,
/// and each run between modules, is clustered into layers on its own, and equal modules are cut equally; so there are never
/// fewer layers than modules. A run between modules without products and parameters joins the layer before it.
/// A layer's boundary carries all that crosses its end, skip connections too. Under full recomputation a layer keeps its
/// input only, except the first, which has none to keep, and the last, whose backward follows at once.
/// Throws: input_error for a graph that validate() refuses, and for options out of range.
/// Complexity: O(n log^2 n) time and O(n) memory for n operators.
/// Determinism: depends on the operators only, not on their names.
/// Source: HARP sec. 5.1.
[[nodiscard]] graph_layers make_layers(const operator_graph& graph, const graph_layer_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/graph_layers.ipp>
#endif
