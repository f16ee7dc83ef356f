// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/partition_test.cpp.

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>

namespace hetsched {

/// Vertices with weights, and a weight for every two of them.
struct device_graph {
  std::vector<double> vertices = {};  ///< FLOP/s
  std::vector<double> edges = {};     ///< bandwidth, [from][to], symmetric, 0 on the diagonal

  [[nodiscard]] std::size_t size() const { return vertices.size(); }
  [[nodiscard]] double edge(std::size_t a, std::size_t b) const { return edges[a * size() + b]; }
};

/// What is asked of a partitioner.
struct partition_request {
  int parts = 2;
  double balance = 1.1;   ///< the heaviest part over the average, at the most
  bool maximise = false;  ///< the cut, in place of minimising it
  std::uint64_t seed = 0;
  std::function<bool()> go_on = {};  ///< false: the answer is no longer wanted, and may be any partition
};

/// Cuts a graph: the part of each vertex, from 0 to parts - 1. Not checked: that no part is empty and that equal questions get
/// equal answers; a partition with an empty part is passed over.
using device_partitioner = std::function<std::vector<int>(const device_graph&, const partition_request&)>;

namespace detail {

/// Throws input_error unless a graph has weights of 0 to 1e100, one for every two vertices and the same both ways.
inline void validate(const device_graph& g) {
  expect_count(static_cast<std::int64_t>(g.size()), "vertices of the graph");
  expect_size(g.edges.size(), g.size() * g.size(), "edges of the graph", "one for every two vertices");
  expect_naturals(g.vertices, "vertices");
  expect_naturals(g.edges, "edges");
  constexpr double most = 1e100;  // sums and products of weights stay finite
  for (std::size_t a = 0; a < g.size(); ++a) {
    if (g.vertices[a] > most || g.edge(a, a) != 0)
      throw input_error("vertex " + std::to_string(a) + " of the graph weighs more than 1e100, or has an edge to itself");
    for (std::size_t b = 0; b < a; ++b)
      if (g.edge(a, b) != g.edge(b, a) || g.edge(a, b) > most)
        throw input_error("the edges of vertices " + std::to_string(b) + " and " + std::to_string(a) +
                          " are not the same both ways, or weigh more than 1e100");
  }
}

/// The same for a request of such a graph's parts. Throws: also for a balance below 1, and unless parts are 1 to the vertices.
inline void validate(const device_graph& g, const partition_request& asked) {
  validate(g);
  expect_count(asked.parts, "parts", 1, static_cast<std::int64_t>(g.size()));
  if (!(asked.balance >= 1 && asked.balance < infinity))
    throw input_error("balance is " + number_text(asked.balance) + ", expected a finite number of at least 1");
}

/// Throws input_error unless every vertex has one of `parts` parts.
inline void validate_parts(const device_graph& g, const std::vector<int>& part, int parts) {
  expect_count(parts, "parts");
  expect_size(part.size(), g.size(), "a partition", "a part of each vertex");
  for (const int p : part) expect_count(p, "the part of a vertex", 0, parts - 1);
}

}  // namespace detail

/// Sum of the edges between different parts.
/// Throws: input_error for weights that are none, and unless each vertex has a part.
[[nodiscard]] inline double cut_of(const device_graph& g, const std::vector<int>& part) {
  detail::validate(g);
  detail::validate_parts(g, part, INT_MAX);
  double sum = 0;
  for (std::size_t a = 0; a < g.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (part[a] != part[b]) sum += g.edge(a, b);
  return sum;
}

/// The heaviest part over the average; at least 1.
/// Throws: input_error as cut_of, for parts below 1, and for vertices that weigh nothing.
[[nodiscard]] inline double balance_of(const device_graph& g, const std::vector<int>& part, int parts) {
  detail::validate(g);
  detail::validate_parts(g, part, parts);
  if (parts > 1'000'000) throw input_error("parts is " + std::to_string(parts) + ", expected at most 1000000");
  std::vector<double> load(as_size(parts));
  double all = 0;
  for (std::size_t v = 0; v < g.size(); ++v) at(load, part[v]) += g.vertices[v], all += g.vertices[v];
  detail::expect_positive(all, "the weight of all vertices");
  return *std::max_element(load.begin(), load.end()) * parts / all;
}

namespace detail {

/// Some devices of one node.
struct machine_part {
  int subcluster = 0;
  int node = 0;
  int devices = 0;
  friend auto operator<=>(const machine_part&, const machine_part&) = default;
};

/// The nodes of a cluster, each cut into pieces of at most `grain` devices.
[[nodiscard]] inline std::vector<machine_part> machine_parts(const cluster& hardware, int grain) {
  std::vector<machine_part> parts;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
    for (int node = 0; node < hardware.subclusters[k].nodes; ++node)
      for (int left = hardware.subclusters[k].devices_per_node; left > 0; left -= grain)
        parts.push_back({static_cast<int>(k), node, std::min(grain, left)});
  return parts;
}

/// The graph of these parts: an edge is the sum of the bandwidths between their devices.
[[nodiscard]] inline device_graph graph_of(const cluster& hardware, const std::vector<machine_part>& parts,
                                           precision arithmetic) {
  const auto n = parts.size();
  device_graph g{std::vector<double>(n), std::vector<double>(n * n)};
  const auto count = hardware.subclusters.size();
  std::vector<double> between(count * count);
  for (const auto& l : hardware.links) {
    const auto a = as_size(l.a), b = as_size(l.b);
    between[a * count + b] = between[b * count + a] = std::min(l.link.bandwidth, l.back().bandwidth);
  }
  for (std::size_t a = 0; a < n; ++a) {
    const auto k = as_size(parts[a].subcluster);
    const auto& s = hardware.subclusters[k];
    g.vertices[a] = parts[a].devices * s.device.flops(arithmetic);
    for (std::size_t b = 0; b < n; ++b) {
      if (a == b) continue;
      const auto other = as_size(parts[b].subcluster);
      const double bandwidth = k != other                       ? between[k * count + other]
                               : parts[a].node == parts[b].node ? s.intra_node.bandwidth
                                                                : s.inter_node.bandwidth;
      constexpr double widest = 1e30;  // for links that take no time
      g.edges[a * n + b] = parts[a].devices * parts[b].devices * std::min(bandwidth, widest);
    }
  }
  return g;
}

}  // namespace detail

}  // namespace hetsched
