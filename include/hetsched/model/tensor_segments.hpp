// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/spmd/segments_test.cpp.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/model/tensor_graph.hpp>

// Parts of a model whose tensors are shared out among devices each in its own way. Between two segments lies a border: a node
// that is the same tensor in the shares of the other one.

namespace hetsched {

[[nodiscard]] inline bool is_border(const tensor_node& n) { return n.op == "border"; }

[[nodiscard]] inline int segment_count(const tensor_graph& graph) {
  int last = 0;
  for (const auto& n : graph.nodes) last = std::max(last, n.segment);
  return last + 1;
}

/// Adds a tensor as a segment has it. Whole tensors and parts of sums stay as they are; one that is cut is exchanged.
int add_border(tensor_graph& graph, std::string name, int x, int segment);

/// A forward graph in segments, with borders between them. `segment`: of each node that is computed; leaves belong to their first
/// reader's.
/// Requires: a segment of at least 0 for each node; no node that is a gradient or a border.
/// Returns: the graph, and where its nodes are now.
/// Complexity: O(nodes + edges) map operations.
[[nodiscard]] std::pair<tensor_graph, std::vector<int>> in_segments(const tensor_graph& graph, std::vector<int> segment);

namespace detail {

// FLOPs of what a node launches; where it multiplies nothing, 20 for a byte, about what devices do while they move one.
[[nodiscard]] inline double work_of(const tensor_node& n) {
  if (!n.kernel) return 0;
  return std::max(flops(*n.kernel), 20 * n.kernel->traffic_bytes);
}

}  // namespace detail

/// Segments of a forward graph, in its order: each has half to twice an even part of the work, and as few bytes as can be lie on
/// the borders.
/// Requires: at least one segment. Returns: a segment for each node, fewer where there are not as many.
/// Complexity: O(segments * nodes^2).
[[nodiscard]] std::vector<int> segments_of(const tensor_graph& graph, int segments);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/tensor_segments.ipp>
#endif
