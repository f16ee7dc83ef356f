// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rented_path.hpp>

namespace hetsched::detail {

/// Pipelines with a period from low to high, and by what their bound is found: fines for devices beyond those that there are, on
/// top of the rents, and the layers whose stages' ends count. Any choice gives a bound; steps along subgradients better ones.
struct period_range {
  period_range(double low_s, double high_s, layer_homes where) : low(low_s), high(high_s), homes(std::move(where)) {}

  double low, high;
  double bound = 0;
  std::vector<double> fine;  // by subcluster; none at first
  std::vector<critical_layer> critical = {{0, 1.0}};
  layer_homes homes;                // of these pipelines
  std::vector<std::uint64_t> seen;  // by layer: the subclusters where the cheapest paths held it
  int counted = 0;                  // how often shares were moved
  int tries = 0;                    // since it was halved
  bool beyond = false;              // a path took more devices than there are
  bool final = false;               // no other shares or fines bring more

  /// Moves shares to a layer whose stage is done last; false if it has all. No more than `most` layers count. O(layers that
  /// count).
  bool count_more(int layer, std::size_t most) {
    if (critical.size() == 1 && critical.front().layer == layer) return false;
    const double share = 1.0 / (1 + ++counted);
    for (auto& c : critical) c.share *= 1 - share;
    const auto after = std::find_if(critical.begin(), critical.end(), [&](const auto& c) { return c.layer >= layer; });
    if (after != critical.end() && after->layer == layer)
      after->share += share;
    else
      critical.insert(after, {layer, share});
    if (critical.size() <= most) return true;
    // The two that are nearest count as one.
    const auto width = [&](std::size_t i) { return critical[i + 1].layer - critical[i].layer; };
    std::size_t nearest = 0;
    for (std::size_t i = 1; i + 1 < critical.size(); ++i)
      if (width(i) < width(nearest)) nearest = i;
    const auto &a = critical[nearest], &b = critical[nearest + 1];
    critical[nearest] = {(a.share > b.share ? a : b).layer, a.share + b.share};
    critical.erase(critical.begin() + static_cast<std::ptrdiff_t>(nearest + 1));
    return true;
  }

  /// Notes where a path holds the layers.
  void see(const interop_problem& problem, const std::vector<interop_stage>& stages) {
    seen.resize(as_size(problem.layers));
    for (const auto& s : stages)
      for (int l = s.layers.first; l < s.layers.last; ++l)
        at(seen, l) |= std::uint64_t{1} << (at(problem.placements, s.placement).subcluster % 64);
  }

  /// The middle one of most layers in a row that paths held in several subclusters; -1 if there is none.
  [[nodiscard]] int disputed() const {
    int best = -1, longest = 0;
    for (std::size_t l = 0; l < seen.size();) {
      auto end = l;
      while (end < seen.size() && std::popcount(seen[end]) > 1) ++end;
      if (static_cast<int>(end - l) > longest) {
        longest = static_cast<int>(end - l);
        best = static_cast<int>((l + end) / 2);
      }
      l = std::max(end, l + 1);
    }
    return best;
  }

  /// Raises fines of devices beyond those that there are and lowers others, by a step that would lead from the bound `now` to the
  /// goal if all went well; false if nothing is beyond. O(subclusters).
  bool fine_more(const std::vector<int>& used, const std::vector<int>& devices, double now, double goal) {
    double norm = 0;
    std::vector<double> excess(used.size(), 0.0);
    for (std::size_t k = 0; k < used.size(); ++k) {
      const double relative = static_cast<double>(used[k]) / devices[k] - 1;
      if (relative > 0 || (!fine.empty() && fine[k] > 0)) excess[k] = relative;
      norm += excess[k] * excess[k];
    }
    if (norm < 1e-6) return false;
    const double aim = goal < infinity ? goal : now + 0.3 * (now + low);
    fine.resize(used.size(), 0.0);
    for (std::size_t k = 0; k < used.size(); ++k)
      fine[k] = std::max(0.0, fine[k] + (aim * 1.02 - now) / norm * excess[k] / devices[k]);
    return true;
  }
};

}  // namespace hetsched::detail
