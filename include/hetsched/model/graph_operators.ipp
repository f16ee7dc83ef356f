// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/graph_operators.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

HETSCHED_INLINE node_backward backward_operators(const operator_graph& graph, const std::vector<char>& needs, int node,
                                                 std::int64_t samples) {
  const auto& n = graph.at(node);
  node_backward result;
  if (!n.launches || at(needs, node) == 0) return result;
  auto op = scaled(n, samples);
  if (op.kind == operator_kind::flash_attention) {
    result.all.push_back({op, 2.5});
  } else if (op.kind == operator_kind::gemm) {
    const auto sized = [&](std::int64_t rows, std::int64_t columns, std::int64_t inner) {
      auto product = op;  // moves the same three matrices
      product.m = rows, product.n = columns, product.k = inner;
      return operator_use{product, 1};
    };
    const auto left = sized(op.m, op.k, op.n), right = sized(op.k, op.n, op.m);
    const auto gradients = gradients_of(graph, needs, node);
    if (gradients.operands > 0) result.all.push_back(left);
    if (gradients.operands > 1 || gradients.weights) result.all.push_back(right);
    if (gradients.weights) result.weights.push_back(right);
  } else {
    double kept = static_cast<double>(n.saved_bytes);
    for (const int j : n.kept) kept += static_cast<double>(graph.at(j).output_bytes);
    op.traffic_bytes += kept * static_cast<double>(samples);
    result.all.push_back({op, 1});
    if (op.kind == operator_kind::gather) result.weights.push_back({op, 1});
  }
  return result;
}

HETSCHED_INLINE layer_operators graph_operators::operators(int index, const layer_share& share) const {
  HETSCHED_EXPECTS(index >= 0 && index < chain().size());
  if (share.tensor != 1 || share.context != 1 || share.expert != 1)
    throw input_error("an operator graph's layers are not sharded: tensor, context and expert degrees must be 1");
  layer_operators all;
  const auto run = at(layers_.operators_of, index);
  for (int i = run.first; i < run.last; ++i) {
    if (!graph_.at(i).launches) continue;
    const operator_use forward{scaled(graph_.at(i), share.samples), 1};
    all.forward.push_back(forward);
    if (at(cores_, i) != 0) all.selective.push_back(forward);
    const auto backward = backward_operators(graph_, needs_, i, share.samples);
    all.backward.insert(all.backward.end(), backward.all.begin(), backward.all.end());
    all.weight_backward.insert(all.weight_backward.end(), backward.weights.begin(), backward.weights.end());
  }
  return all;
}

}  // namespace hetsched
