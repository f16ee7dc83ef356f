// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/detail/set_order_test.cpp.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/hexiscale/device_graph.hpp>

namespace hetsched::detail {

/// Paths through all vertices, found greedily: from every start, on along the `top` widest edges that are left, as far as
/// `most_steps` go. `widths`: bandwidths between the vertices; a path cannot take one of 0.
/// Returns: the `keep` paths of the least sum of 1 / bandwidth, the first found of equals; empty where no path was found.
/// Complexity: O(min(vertices * top^vertices, most_steps) * vertices).
/// Source: HexiScale sec. 4.3, step iii.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> widest_paths(const device_graph& widths, int top, std::size_t keep,
                                                                        int most_steps) {
  struct found_path {
    double length = 0;
    std::vector<std::size_t> vertices;
  };
  const auto n = widths.size();
  std::vector<found_path> best;
  std::vector<std::size_t> path;
  std::vector<bool> taken(n, false);
  int steps = 0;
  const auto walk = [&](auto&& self, double length) -> void {
    if (best.size() == keep && length >= best.back().length) return;
    if (path.size() == n) {
      const auto at =
          std::upper_bound(best.begin(), best.end(), length, [](double l, const found_path& other) { return l < other.length; });
      best.insert(at, {length, path});
      if (best.size() > keep) best.pop_back();
      return;
    }
    std::vector<std::pair<double, std::size_t>> next;
    for (std::size_t v = 0; v < n; ++v)
      if (!taken[v] && (path.empty() || widths.edge(path.back(), v) > 0))
        next.emplace_back(path.empty() ? 0 : -widths.edge(path.back(), v), v);
    std::sort(next.begin(), next.end());
    if (!path.empty() && next.size() > as_size(top)) next.resize(as_size(top));
    for (const auto& [width, v] : next) {
      // Every path goes to its end before the steps run out.
      if (steps >= most_steps && !best.empty()) return;
      ++steps;
      taken[v] = true;
      path.push_back(v);
      self(self, width < 0 ? length - 1 / width : length);
      path.pop_back();
      taken[v] = false;
    }
  };
  walk(walk, 0.0);
  std::vector<std::vector<std::size_t>> paths;
  for (auto& p : best) paths.push_back(std::move(p.vertices));
  return paths;
}

}  // namespace hetsched::detail
