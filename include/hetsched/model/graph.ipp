// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/graph.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const operator_graph& graph) {
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

HETSCHED_INLINE double weight_traffic(const graph_node& n) {
  if (!multiplies_weights(n)) return 0;
  const double operand = static_cast<double>(n.op.batch) * static_cast<double>(n.op.n) * static_cast<double>(n.op.k);
  const double weights = static_cast<double>(n.parameters) + static_cast<double>(n.shared_parameters);
  return std::min(std::min(operand, weights) * element_bytes(n.op.format), n.op.traffic_bytes);
}

HETSCHED_INLINE operator_shape scaled(const graph_node& n, std::int64_t samples) {
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

HETSCHED_INLINE std::vector<char> needs_gradient(const operator_graph& graph) {
  std::vector<char> needs(graph.nodes.size());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const auto& n = graph.nodes[i];
    needs[i] = n.parameters > 0 || n.shared_parameters > 0 ||
               std::any_of(n.inputs.begin(), n.inputs.end(), [&](int j) { return at(needs, j) != 0; });
  }
  return needs;
}

HETSCHED_INLINE product_gradients gradients_of(const operator_graph& graph, const std::vector<char>& needs, int node) {
  const auto& n = graph.at(node);
  if (!has_product(n) || at(needs, node) == 0) return {};
  const auto wanted = std::count_if(n.inputs.begin(), n.inputs.end(), [&](int j) { return at(needs, j) != 0; });
  if (multiplies_weights(n)) return {wanted > 0 ? 1 : 0, true};
  return {n.op.kind == operator_kind::flash_attention ? 2 : static_cast<int>(std::min<std::ptrdiff_t>(wanted, 2)), false};
}

}  // namespace hetsched
