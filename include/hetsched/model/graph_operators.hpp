// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/graph_test.cpp.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/graph.hpp>
#include <hetsched/model/graph_analysis.hpp>
#include <hetsched/model/graph_layers.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/layer_operators.hpp>

namespace hetsched {

/// What one node's backward launches.
struct node_backward {
  std::vector<operator_use> all{};
  std::vector<operator_use> weights{};  ///< of these, those that compute gradients of weights only
};

/// What a node's backward launches for so many samples; `needs`: needs_gradient() of the graph. A product (m x k)(k x n)
/// launches one product for each operand that wants a gradient. Attention is one kernel of 2.5 times its forward: five
/// products for two, as the scores are made again. All else is one kernel of its own kind, which moves what forward moved and
/// kept. Gradients of biases and scales cost nothing extra.
/// Throws: input_error for samples below 1 and sizes beyond 64 bits.
/// Complexity: O(inputs + kept).
/// Source: Dao 2023, sec. 3.1 (attention).
[[nodiscard]] node_backward backward_operators(const operator_graph& graph, const std::vector<char>& needs, int node,
                                               std::int64_t samples);

/// A graph as an operator_model. A graph does not say how its layers could be sharded, so cost models of it need max_tensor
/// and max_context of 1.
class graph_operators {
 public:
  /// Throws: as make_layers.
  explicit graph_operators(operator_graph graph, const graph_layer_options& options = {})
      : graph_(std::move(graph)),
        layers_(make_layers(graph_, options)),
        needs_(needs_gradient(graph_)),
        cores_(attention_cores(graph_)) {}

  [[nodiscard]] const operator_graph& graph() const { return graph_; }
  [[nodiscard]] const graph_layers& layers() const { return layers_; }
  [[nodiscard]] const layer_chain& chain() const { return layers_.chain; }
  [[nodiscard]] int kind(int index) const {
    HETSCHED_EXPECTS(index >= 0 && index < chain().size());
    return at(layers_.kind, index);
  }

  /// What a layer launches for so many samples.
  /// Throws: input_error where the share is a part of a layer.
  /// Complexity: O(operators of the layer).
  [[nodiscard]] layer_operators operators(int index, const layer_share& share) const;

 private:
  operator_graph graph_;
  graph_layers layers_;
  std::vector<char> needs_, cores_;
};

static_assert(operator_model<graph_operators>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/graph_operators.ipp>
#endif
