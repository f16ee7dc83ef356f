// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/graph_layers_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/graph.hpp>

namespace hetsched::detail {

// A run of operators as units that are never cut: each a product with what surrounds it, cut from the next where the fewest bytes
// cross between the two (the last such place, so that what follows a product stays with it).
struct operator_units {
  std::vector<int> ends{};
  std::vector<double> flops_before{0};  // of the units before each, and of all
  std::vector<bytes_t> cut_bytes{};     // behind each; 0 behind the last, which is no choice

  [[nodiscard]] std::size_t size() const { return ends.size(); }
};

[[nodiscard]] inline operator_units units_of(const operator_graph& graph, const std::vector<bytes_t>& bytes, layer_range run) {
  operator_units units;
  int best = -1;
  for (int i = run.first; i < run.last; ++i) {
    if (best > 0 && at(bytes, i) <= at(bytes, best)) best = i;
    if (has_product(graph.at(i))) {
      if (best > 0) {
        units.ends.push_back(best);
        units.cut_bytes.push_back(at(bytes, best));
      }
      units.flops_before.push_back(units.flops_before.back() + product_flops(graph.at(i).op));
      best = i + 1;
    }
  }
  units.ends.push_back(run.last);
  units.cut_bytes.push_back(0);
  if (units.flops_before.size() == 1) units.flops_before.push_back(0);
  return units;
}

struct unit_clusters {
  bytes_t bytes = 0;                // over all cuts
  std::vector<std::size_t> ends{};  // in units
};

// The clusters of fewest bytes that have at most `cap` FLOPs each, or one unit; larger ones first where bytes are equal. A
// minimum over a sliding window: O(units).
[[nodiscard]] inline unit_clusters cluster_units(const operator_units& units, double cap) {
  const auto n = units.size();
  std::vector<bytes_t> least(n + 1);
  std::vector<std::size_t> from(n + 1), window;  // where the last cluster begins: of ascending bytes
  std::size_t front = 0;
  for (std::size_t end = 1; end <= n; ++end) {
    while (window.size() > front && least[window.back()] > least[end - 1]) window.pop_back();
    window.push_back(end - 1);
    while (window[front] + 1 < end && units.flops_before[end] - units.flops_before[window[front]] > cap) ++front;
    from[end] = window[front];
    least[end] = checked_add(least[from[end]], units.cut_bytes[end - 1]);
  }
  unit_clusters found{.bytes = least[n], .ends = {}};
  for (std::size_t end = n; end > 0; end = from[end]) found.ends.push_back(end);
  std::reverse(found.ends.begin(), found.ends.end());
  return found;
}

// The ends of a run's layers: the clusters of fewest bytes under the cap and, of these, with the least largest FLOPs.
// O(operators + 40 units).
[[nodiscard]] inline std::vector<int> layer_ends(const operator_graph& graph, const std::vector<bytes_t>& bytes, layer_range run,
                                                 double cap) {
  const auto units = units_of(graph, bytes, run);
  auto best = cluster_units(units, cap);
  double low = 0, high = std::min(cap, units.flops_before.back());
  for (int step = 0; step < 40; ++step) {
    const double middle = (low + high) / 2;
    auto tighter = cluster_units(units, middle);
    if (tighter.bytes > best.bytes) {
      low = middle;
    } else {
      high = middle;
      best = std::move(tighter);
    }
  }
  std::vector<int> ends;
  for (const auto u : best.ends) ends.push_back(units.ends[u - 1]);
  return ends;
}

}  // namespace hetsched::detail
