// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <metis.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/hexiscale/partition.hpp>

namespace hetsched {

namespace detail {

/// metis_partition for any graph: METIS may leave parts empty, and says so on standard output.
[[nodiscard]] inline std::vector<int> metis_cut(const device_graph& g, const partition_request& asked) {
  const auto scaled = [](double weight, double largest) {
    return largest > 0 ? static_cast<idx_t>(weight / largest * 1000 + 0.5) : idx_t{0};
  };
  const double heaviest = *std::max_element(g.vertices.begin(), g.vertices.end());
  const double widest = *std::max_element(g.edges.begin(), g.edges.end());
  std::vector<idx_t> begin{0}, neighbours, edges, vertices, part(g.size());
  for (std::size_t a = 0; a < g.size(); ++a) {
    vertices.push_back(std::max(idx_t{1}, scaled(g.vertices[a], heaviest)));
    for (std::size_t b = 0; b < g.size(); ++b) {
      const auto weight = scaled(asked.maximise ? widest - g.edge(a, b) : g.edge(a, b), widest);
      if (a == b || weight < 1) continue;
      neighbours.push_back(static_cast<idx_t>(b));
      edges.push_back(weight);
    }
    begin.push_back(static_cast<idx_t>(neighbours.size()));
  }
  // A graph without edges would have no arrays.
  neighbours.push_back(0);
  edges.push_back(0);
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = static_cast<idx_t>(asked.seed % 1'000'000);
  options[METIS_OPTION_NUMBERING] = 0;
  idx_t count = static_cast<idx_t>(g.size()), constraints = 1, parts = asked.parts, cut = 0;
  auto balance = static_cast<real_t>(std::max(1.001, asked.balance));
  const auto partition = parts <= 8 ? METIS_PartGraphRecursive : METIS_PartGraphKway;
  if (partition(&count, &constraints, begin.data(), neighbours.data(), vertices.data(), nullptr, edges.data(), &parts, nullptr,
                &balance, options, &cut, part.data()) != METIS_OK)
    throw input_error("METIS could not partition the graph");
  return {part.begin(), part.end()};
}

}  // namespace detail

/// Cuts a graph by METIS: heavy-edge matching, recursive bisection up to eight parts and k-way beyond, refinement. Weights are
/// rounded to a thousandth of the largest. METIS minimises: for the largest cut it gets each edge's weight short of the largest.
/// Fewer than eight vertices a part, with which METIS often fails and prints that, are left to grow_and_refine. Belongs to
/// component metis. METIS draws from the C library's rand(), which it seeds: not for several threads at once.
/// Throws: input_error as grow_and_refine, and where METIS fails.
/// Determinism: by graph and request.
/// Source: Karypis, Kumar 1998; HexiScale sec. 4.2.
[[nodiscard]] inline std::vector<int> metis_partition(const device_graph& g, const partition_request& asked) {
  detail::validate(g, asked);
  if (asked.parts == 1 || g.size() < 8 * as_size(asked.parts)) return grow_and_refine(g, asked);
  return detail::metis_cut(g, asked);
}

}  // namespace hetsched
