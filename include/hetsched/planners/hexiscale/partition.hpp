// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/hexiscale/device_graph.hpp>

namespace hetsched {

namespace detail {

/// Moves vertices between parts after Kernighan and Lin: a pass moves every vertex once, each time the best of those left, and
/// goes back to the best state that it went through. Overweight counts before the cut.
class partition_refiner {
 public:
  partition_refiner(const device_graph& g, const partition_request& asked, std::vector<int>& part)
      : g_(g), part_(part), parts_(as_size(asked.parts)), sign_(asked.maximise ? -1 : 1), go_on_(asked.go_on) {
    const double all = std::accumulate(g.vertices.begin(), g.vertices.end(), 0.0);
    limit_ = asked.balance * all / asked.parts * (1 + tolerance::rounding);
    load_.resize(parts_);
    members_.resize(parts_);
    joined_.resize(g.size() * parts_);
    for (std::size_t v = 0; v < g.size(); ++v) enter(v, part_[v]);
  }

  void run() {
    constexpr int most_passes = 10'000;  // rounding must not go round and round
    for (int left = most_passes; left > 0 && pass();) --left;
  }

 private:
  struct state {
    double over = 0, cut = 0;  // relative to where the pass began
    [[nodiscard]] bool better_than(const state& other) const {
      const double small = tolerance::sums;
      return over < other.over - small || (over < other.over + small && cut < other.cut);
    }
  };

  [[nodiscard]] double& joined(std::size_t v, int p) { return joined_[v * parts_ + as_size(p)]; }
  void enter(std::size_t v, int p) {
    part_[v] = p;
    at(load_, p) += g_.vertices[v];
    ++at(members_, p);
    for (std::size_t u = 0; u < g_.size(); ++u) joined(u, p) += g_.edge(u, v);
  }
  void leave(std::size_t v) {
    const int p = part_[v];
    at(load_, p) -= g_.vertices[v];
    --at(members_, p);
    for (std::size_t u = 0; u < g_.size(); ++u) joined(u, p) -= g_.edge(u, v);
  }
  [[nodiscard]] double over(double load) const { return std::max(0.0, load / limit_ - 1); }

  [[nodiscard]] bool pass() {
    std::vector<bool> moved(g_.size(), false);
    std::vector<std::pair<std::size_t, int>> trail;  // vertex, and where it came from
    const double unit = std::max(1e-300, *std::max_element(g_.edges.begin(), g_.edges.end()));
    state now, best;
    std::size_t best_at = 0;
    for (std::size_t step = 0; step < g_.size(); ++step) {
      if (go_on_ && !go_on_()) return false;
      state least{infinity, 0};
      std::size_t which = 0;
      int where = -1;
      for (std::size_t v = 0; v < g_.size(); ++v) {
        const auto from = as_size(part_[v]);
        if (moved[v] || members_[from] == 1) continue;
        for (std::size_t to = 0; to < parts_; ++to) {
          if (to == from) continue;
          const double heavier = over(load_[to] + g_.vertices[v]) - over(load_[to]);
          const state next{now.over + heavier + over(load_[from] - g_.vertices[v]) - over(load_[from]),
                           now.cut + sign_ * (joined(v, part_[v]) - joined(v, static_cast<int>(to))) / unit};
          if (next.better_than(least)) least = next, which = v, where = static_cast<int>(to);
        }
      }
      if (where < 0) break;
      trail.emplace_back(which, part_[which]);
      leave(which);
      enter(which, where);
      moved[which] = true;
      now = least;
      if (now.over < best.over - tolerance::sums ||
          (now.over < best.over + tolerance::sums && now.cut < best.cut - tolerance::sums)) {
        best = now;
        best_at = trail.size();
      }
    }
    for (; trail.size() > best_at; trail.pop_back()) {
      leave(trail.back().first);
      enter(trail.back().first, trail.back().second);
    }
    return best_at > 0;
  }

  const device_graph& g_;
  std::vector<int>& part_;
  std::size_t parts_;
  double sign_, limit_ = 0;
  const std::function<bool()>& go_on_;
  std::vector<double> load_, joined_;  // joined: of a vertex to a part
  std::vector<int> members_;
};

}  // namespace detail

/// Cuts a graph by greedy growth, which gives each time the lightest part the vertex that suits it best, and refinement after
/// Kernighan and Lin. A fallback for graphs of up to some hundreds of vertices where METIS is not at hand.
/// Throws: input_error for weights that are none, a balance below 1, and unless parts are 1 to the number of vertices.
/// Returns: the part of each vertex; no part is empty. Parts may be heavier than asked for where the search finds no other way.
/// Where asked.go_on ends it, some partition.
/// Complexity: O(vertices^2 * parts) a pass.
/// Determinism: by graph and request; the seed decides the first vertices.
/// Source: Kernighan, Lin 1970; in place of the coarsening of HexiScale sec. 4.2.
[[nodiscard]] inline std::vector<int> grow_and_refine(const device_graph& g, const partition_request& asked) {
  detail::validate(g, asked);
  const auto n = g.size(), parts = as_size(asked.parts);
  std::vector<int> part(n, -1);
  // Heavy vertices first; equal ones in an order by seed.
  random_source random(asked.seed);
  std::vector<std::pair<double, std::size_t>> order(n);
  for (std::size_t v = 0; v < n; ++v) order[v] = {-g.vertices[v] * (asked.seed == 0 ? 1 : random.uniform(0.7, 1.0)), v};
  std::sort(order.begin(), order.end());
  std::vector<double> load(parts), joined(n * parts);
  for (std::size_t step = 0; step < n; ++step) {
    if (asked.go_on && !asked.go_on()) {
      for (std::size_t v = 0; v < n; ++v) part[v] = static_cast<int>(v % parts);
      return part;
    }
    const auto lightest = as_size(std::min_element(load.begin(), load.end()) - load.begin());
    std::size_t chosen = n;
    for (const auto& [ignored, v] : order) {
      if (part[v] >= 0) continue;
      const double gain = joined[v * parts + lightest], best = chosen < n ? joined[chosen * parts + lightest] : 0;
      if (chosen == n || (asked.maximise ? gain < best : gain > best)) chosen = v;
    }
    part[chosen] = static_cast<int>(lightest);
    load[lightest] += g.vertices[chosen];
    for (std::size_t u = 0; u < n; ++u) joined[u * parts + lightest] += g.edge(u, chosen);
  }
  if (asked.parts > 1) detail::partition_refiner(g, asked, part).run();
  return part;
}

}  // namespace hetsched
