// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/graph_analysis.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<int> operator_tokens(const operator_graph& graph) {
  const auto needs = needs_gradient(graph), cores = attention_cores(graph);
  detail::numbering types, operators;
  std::vector<int> tokens;
  tokens.reserve(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    const auto& n = graph.at(i);
    const auto& op = n.op;
    std::vector<std::int64_t> key{types(n.type),
                                  n.launches,
                                  static_cast<int>(op.kind),
                                  static_cast<int>(op.format),
                                  op.batch,
                                  op.m,
                                  op.n,
                                  op.k,
                                  std::bit_cast<std::int64_t>(op.traffic_bytes),
                                  std::bit_cast<std::int64_t>(op.causal_share),
                                  op.scalar,
                                  op.batched,
                                  n.parameters,
                                  n.shared_parameters,
                                  n.output_bytes,
                                  n.saved_bytes,
                                  at(needs, i),
                                  at(cores, i),
                                  static_cast<std::int64_t>(n.inputs.size())};
    for (const int j : n.inputs) key.insert(key.end(), {graph.at(j).output_bytes, at(needs, j)});
    for (const int j : n.kept) key.push_back(j == i ? -1 : graph.at(j).output_bytes);
    tokens.push_back(operators(key));
  }
  return tokens;
}

HETSCHED_INLINE std::vector<bytes_t> cut_bytes(const operator_graph& graph) {
  const auto n = graph.nodes.size();
  std::vector<int> last_read(n, -1);
  for (int i = 0; i < graph.size(); ++i)
    for (const int j : graph.at(i).inputs) at(last_read, j) = i;
  // a result enters the cuts behind its maker and leaves behind its last reader
  // as (storage, cut), in order, and the node or its complement
  std::vector<std::pair<std::uint64_t, int>> events;
  std::vector<int> storages(n);  // storage_of() every node, without walking chains of views
  for (int i = 0; i < graph.size(); ++i) {
    const auto& node = graph.at(i);
    const bool view = !node.launches && !node.inputs.empty();
    const int last = at(last_read, i);
    const int storage = view ? at(storages, node.inputs.front()) : i;
    at(storages, i) = storage;
    if (last < 0 || !graph.at(storage).launches) continue;
    const auto at = [&](int cut) { return static_cast<std::uint64_t>(storage) << 32 | static_cast<std::uint32_t>(cut); };
    events.emplace_back(at(i + 1), i);
    events.emplace_back(at(last + 1), ~i);
  }
  std::sort(events.begin(), events.end());
  std::vector<bytes_t> bytes(n + 1);
  bytes_t read = 0, counted = 0;
  for (std::size_t e = 0; e < events.size(); ++e) {
    const auto [at, node] = events[e];
    if (e == 0 || at >> 32 != events[e - 1].first >> 32) read = counted = 0;
    read = checked_add(read, node >= 0 ? graph.at(node).output_bytes : -graph.at(~node).output_bytes);
    const auto now = std::min(read, graph.at(static_cast<int>(at >> 32)).output_bytes);
    auto& change = bytes[at & 0xffffffffu];
    change = checked_add(change, now - counted);
    counted = now;
  }
  for (std::size_t i = 1; i <= n; ++i) bytes[i] = checked_add(bytes[i], bytes[i - 1]);
  return bytes;
}

HETSCHED_INLINE std::vector<char> attention_cores(const operator_graph& graph) {
  const auto n = graph.nodes.size();
  const auto scores = [&](const graph_node& node) {
    return has_product(node) && node.op.kind == operator_kind::gemm && !multiplies_weights(node);
  };
  std::vector<char> behind(n), before(n);  // whether such a product feeds it, and whether it feeds one
  for (std::size_t i = 0; i < n; ++i)
    for (const int j : graph.nodes[i].inputs)
      if (scores(graph.at(j)) || (!has_product(graph.at(j)) && at(behind, j) != 0)) behind[i] = 1;
  for (std::size_t i = n; i-- > 0;) {
    const auto& node = graph.nodes[i];
    if (scores(node) || (!has_product(node) && before[i] != 0))
      for (const int j : node.inputs) at(before, j) = 1;
  }
  std::vector<char> core(n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool between = behind[i] != 0 && before[i] != 0;
    if (scores(graph.nodes[i]) ? behind[i] != 0 || before[i] != 0 : !has_product(graph.nodes[i]) && between)
      core[i] = before[i] != 0 ? 2 : 1;
  }
  return core;
}

}  // namespace hetsched
