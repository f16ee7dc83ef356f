// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/model/tensor_segments.hpp>

namespace hetsched {

HETSCHED_INLINE int add_border(tensor_graph& graph, std::string name, int x, int segment) {
  tensor_node n{.name = std::move(name), .op = "border", .inputs = {x}, .shape = graph.at(x).shape, .linear = {{0}}};
  n.loops = detail::loops_over(n.shape);
  n.result_loops = detail::count_up(n.shape.size());
  n.input_loops = {n.result_loops};
  n.segment = segment;
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE std::pair<tensor_graph, std::vector<int>> in_segments(const tensor_graph& graph, std::vector<int> segment) {
  HETSCHED_EXPECTS(segment.size() == graph.nodes.size());
  std::vector<char> read(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const int j : graph.nodes[i].inputs) {
      const auto from = as_size(j);
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
      const int from = at(now, input);
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

HETSCHED_INLINE std::vector<int> segments_of(const tensor_graph& graph, int segments) {
  HETSCHED_EXPECTS(segments >= 1);
  const auto nodes = graph.nodes.size();
  std::vector<double> work(nodes + 1), crossing(nodes + 1);  // before a node
  std::vector<std::size_t> last(nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    work[i + 1] = work[i] + detail::work_of(graph.nodes[i]);
    last[i] = i;
    for (const int j : graph.nodes[i].inputs) at(last, j) = i;
  }
  for (std::size_t i = 0; i < nodes; ++i)
    for (std::size_t c = i + 1; !is_leaf(graph.nodes[i]) && c <= last[i]; ++c)
      crossing[c] += tensor_bytes(graph, static_cast<int>(i));
  // least[s][c]: bytes on the borders of s segments before node c.
  const double even = work[nodes] / segments, none = infinity;
  const auto count = as_size(segments);
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
