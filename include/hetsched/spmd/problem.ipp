// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched {

HETSCHED_INLINE int spmd_problem::device_count() const {
  return std::accumulate(kinds.begin(), kinds.end(), 0, [](int sum, const device_kind& k) { return sum + k.count; });
}

HETSCHED_INLINE int spmd_problem::segments() const { return segment_count(graph); }

HETSCHED_INLINE std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph) {
  std::vector<std::size_t> first;  // of a node's dimensions
  std::size_t dimensions = 0;
  for (const auto& n : graph.nodes) {
    first.push_back(dimensions);
    dimensions += n.shape.size();
  }
  std::vector<std::size_t> parent(dimensions);
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto find = [&](std::size_t d) {
    while (parent[d] != d) d = parent[d] = parent[parent[d]];
    return d;
  };
  std::vector<std::int64_t> parts;
  for (const auto& n : graph.nodes) parts.insert(parts.end(), n.shape.begin(), n.shape.end());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& n = graph.nodes[i];
    if (is_border(n)) continue;
    for (std::size_t loop = 0; loop < n.loops.size(); ++loop) {
      std::size_t joined = dimensions;
      const auto join = [&](std::size_t node, const std::vector<int>& follows) {
        for (std::size_t d = 0; d < follows.size(); ++d) {
          if (follows[d] != static_cast<int>(loop)) continue;
          const auto root = find(first[node] + d);
          parts[root] = std::gcd(parts[root], n.loops[loop].size);
          if (joined != dimensions && find(joined) != root) {
            const auto other = find(joined);
            parts[other] = std::gcd(parts[other], parts[root]);
            parent[root] = other;
          }
          joined = first[node] + d;
        }
      };
      for (std::size_t input = 0; input < n.inputs.size(); ++input) join(as_size(n.inputs[input]), n.input_loops[input]);
      join(i, n.result_loops);
    }
  }
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    all.emplace_back();
    for (std::size_t d = 0; d < graph.nodes[i].shape.size(); ++d) all.back().push_back(parts[find(first[i] + d)]);
  }
  return all;
}

HETSCHED_INLINE std::vector<spmd_rule> rules_of(const tensor_node& n) {
  std::vector<spmd_rule> rules{{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole())}};
  const auto form_in = [](const std::vector<int>& follows, int loop, tensor_form otherwise) {
    const auto at = std::find(follows.begin(), follows.end(), loop);
    return at == follows.end() ? otherwise : tensor_form::cut(static_cast<int>(at - follows.begin()));
  };
  for (std::size_t i = 0; i < n.loops.size(); ++i) {
    if (!n.loops[i].cut || n.loops[i].size < 2) continue;
    const int loop = static_cast<int>(i);
    spmd_rule rule{.result = form_in(n.result_loops, loop, tensor_form::partial()), .shared = true};
    for (const auto& follows : n.input_loops) rule.inputs.push_back(form_in(follows, loop, tensor_form::whole()));
    rules.push_back(std::move(rule));
  }
  for (const auto& set : n.linear) {
    spmd_rule rule{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole()), .result = tensor_form::partial()};
    for (const int input : set) at(rule.inputs, input) = tensor_form::partial();
    rules.push_back(std::move(rule));
  }
  for (int from = 0; is_border(n) && from < static_cast<int>(n.shape.size()); ++from)
    for (int to = 0; to < static_cast<int>(n.shape.size()); ++to)
      if (from != to && std::min(at(n.shape, from), at(n.shape, to)) > 1)
        rules.push_back({.inputs = {tensor_form::cut(from)}, .result = tensor_form::cut(to), .shared = true});
  return rules;
}

}  // namespace hetsched
