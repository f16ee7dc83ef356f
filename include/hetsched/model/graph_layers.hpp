// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>
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

  [[nodiscard]] layer operator()(layer_range range) {
    ++stamp_;
    layer l;
    double traffic = 0;
    std::int64_t looked_up = 0, copies = 0, owners_hold = 0;
    for (int i = range.first; i < range.last; ++i) {
      const auto& n = graph_.at(i);
      const char core = cores_[static_cast<std::size_t>(i)];
      l.parameters = checked_add(l.parameters, n.parameters);
      if (n.launches) {
        traffic += n.op.traffic_bytes - weight_traffic(n);
        if (n.op.kind == operator_kind::gather)
          looked_up = checked_add(looked_up, checked_add(n.parameters, n.shared_parameters));
      }
      add_products(l, i);
      l.activation_bytes = checked_add(l.activation_bytes, n.saved_bytes);
      if (core != 0) l.selective_saved_bytes = checked_add(l.selective_saved_bytes, n.saved_bytes);
      for (const int j : n.kept) {
        if (std::exchange(seen_[static_cast<std::size_t>(j)], stamp_) == stamp_) continue;
        l.activation_bytes = checked_add(l.activation_bytes, graph_.at(j).output_bytes);
        if (cores_[static_cast<std::size_t>(j)] == 2 && j >= range.first)
          l.selective_saved_bytes = checked_add(l.selective_saved_bytes, graph_.at(j).output_bytes);
      }
      // A copy is needed of what another layer owns, once.
      const auto elsewhere = [&](int owner) { return owner < range.first; };
      if (n.shared_parameters > 0 && (n.owners.empty() || std::any_of(n.owners.begin(), n.owners.end(), elsewhere))) {
        copies = checked_add(copies, n.shared_parameters);
        if (n.owners.empty()) owners_hold = checked_add(owners_hold, n.shared_parameters);
        for (const int j : n.owners)
          if (elsewhere(j) && std::exchange(owned_[static_cast<std::size_t>(j)], stamp_) != stamp_)
            owners_hold = checked_add(owners_hold, graph_.at(j).parameters);
      }
    }
    l.shared_parameters = std::min(copies, owners_hold);
    l.memory_traffic_bytes = static_cast<bytes_t>(std::min(traffic, 9e18));
    if (const auto held = checked_add(l.parameters, l.shared_parameters); held > 0 && looked_up > 0)
      l.active_fraction = static_cast<double>(std::max<std::int64_t>(0, held - looked_up)) / static_cast<double>(held);
    return l;
  }

 private:
  void add_products(layer& l, int i) const {
    const double flops = product_flops(graph_.at(i).op);
    if (!has_product(graph_.at(i))) return;
    const auto gradients = gradients_of(graph_, needs_, i);
    l.forward_flops += flops;
    l.backward_flops += flops * (gradients.operands + (gradients.weights ? 1 : 0));
    if (gradients.weights) l.weight_backward_flops += flops;
    if (cores_[static_cast<std::size_t>(i)] != 0) l.selective_flops += flops;
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
