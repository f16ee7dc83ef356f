// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/spmd/segments_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
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
inline int add_border(tensor_graph& graph, std::string name, int x, int segment) {
  tensor_node n{.name = std::move(name), .op = "border", .inputs = {x}, .shape = graph.at(x).shape, .linear = {{0}}};
  n.loops = detail::loops_over(n.shape);
  n.result_loops = detail::count_up(n.shape.size());
  n.input_loops = {n.result_loops};
  n.segment = segment;
  return detail::put(graph, std::move(n));
}

/// A forward graph in segments, with borders between them. `segment`: of each node that is computed; leaves belong to their first
/// reader's.
/// Requires: a segment of at least 0 for each node; no node that is a gradient or a border.
/// Returns: the graph, and where its nodes are now.
/// Complexity: O(nodes + edges) map operations.
[[nodiscard]] inline std::pair<tensor_graph, std::vector<int>> in_segments(const tensor_graph& graph, std::vector<int> segment) {
  HETSCHED_EXPECTS(segment.size() == graph.nodes.size());
  std::vector<char> read(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const int j : graph.nodes[i].inputs) {
      const auto from = static_cast<std::size_t>(j);
      if (is_leaf(graph.at(j)) && !read[from]) segment[from] = segment[i];
      read[from] = 1;
    }
  tensor_graph cut{.nodes = {}, .format = graph.format};
  std::vector<int> now;
  std::map<std::pair<int, int>, int> borders;  // of nodes and segments
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    auto n = graph.nodes[i];
    n.segment = segment[i];
    for (auto& input : n.inputs) {
      const int from = now[static_cast<std::size_t>(input)];
      if (cut.at(from).segment == n.segment) {
        input = from;
        continue;
      }
      const auto [known, fresh] = borders.try_emplace({from, n.segment}, -1);
      if (fresh) known->second = add_border(cut, cut.at(from).name + "@" + std::to_string(n.segment), from, n.segment);
      input = known->second;
    }
    now.push_back(detail::put(cut, std::move(n)));
  }
  return {std::move(cut), std::move(now)};
}

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
[[nodiscard]] inline std::vector<int> segments_of(const tensor_graph& graph, int segments) {
  HETSCHED_EXPECTS(segments >= 1);
  const auto nodes = graph.nodes.size();
  std::vector<double> work(nodes + 1), crossing(nodes + 1);  // before a node
  std::vector<std::size_t> last(nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    work[i + 1] = work[i] + detail::work_of(graph.nodes[i]);
    last[i] = i;
    for (const int j : graph.nodes[i].inputs) last[static_cast<std::size_t>(j)] = i;
  }
  for (std::size_t i = 0; i < nodes; ++i)
    for (std::size_t c = i + 1; !is_leaf(graph.nodes[i]) && c <= last[i]; ++c)
      crossing[c] += tensor_bytes(graph, static_cast<int>(i));
  // least[s][c]: bytes on the borders of s segments before node c.
  const double even = work[nodes] / segments, none = std::numeric_limits<double>::infinity();
  const auto count = static_cast<std::size_t>(segments);
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(nodes + 1, none));
  std::vector<std::vector<std::size_t>> begin(count + 1, std::vector<std::size_t>(nodes + 1));
  least[0][0] = 0;
  for (std::size_t s = 1; s <= count; ++s)
    for (std::size_t c = 1; c <= nodes; ++c)
      for (std::size_t b = 0; b < c; ++b) {
        const double own = work[c] - work[b], bytes = least[s - 1][b] + crossing[c];
        if (own < even / 2 || own > 2 * even || bytes >= least[s][c]) continue;
        least[s][c] = bytes;
        begin[s][c] = b;
      }
  std::vector<int> found(nodes);
  auto used = count;
  while (used > 1 && least[used][nodes] == none) --used;
  if (least[used][nodes] == none) return found;
  for (auto end = nodes; used > 0; end = begin[used--][end])
    std::fill(found.begin() + static_cast<std::ptrdiff_t>(begin[used][end]), found.begin() + static_cast<std::ptrdiff_t>(end),
              static_cast<int>(used) - 1);
  return found;
}

}  // namespace hetsched
