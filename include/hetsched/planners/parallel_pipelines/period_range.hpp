// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/planners/parallel_pipelines/rented_path.hpp>

namespace hetsched::detail {

/// Pipelines with a period from low to high, and by what their bound is found: fines for devices beyond those that there are, on
/// top of the rents, and the layers whose stages' ends count. Any choice gives a bound; steps along subgradients better ones.
struct period_range {
  period_range(double low_s, double high_s) : low(low_s), high(high_s) {}

  double low, high;
  double bound = 0;
  std::vector<double> fine;  // by subcluster; none at first
  std::vector<critical_layer> critical = {{0, 1.0}};
  int counted = 0;     // how often shares were moved
  int tries = 0;       // since it was halved
  bool final = false;  // no other shares or fines bring more

  /// Moves shares to a layer whose stage is done last; false if it has all. O(layers that count).
  bool count_more(int layer) {
    constexpr std::size_t most = 4;
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

  /// Raises fines of devices beyond those that there are and lowers others, by a step that would lead from the bound `now` to the
  /// goal if all went well; false if nothing is beyond. O(subclusters).
  bool fine_more(const std::vector<int>& used, const std::vector<int>& devices, double now, double goal) {
    double norm = 0;
    std::vector<double> beyond(used.size(), 0.0);
    for (std::size_t k = 0; k < used.size(); ++k) {
      const double relative = static_cast<double>(used[k]) / devices[k] - 1;
      if (relative > 0 || (!fine.empty() && fine[k] > 0)) beyond[k] = relative;
      norm += beyond[k] * beyond[k];
    }
    if (norm < 1e-6) return false;
    const double aim = goal < infinity ? goal : now + 0.3 * (now + low);
    fine.resize(used.size(), 0.0);
    for (std::size_t k = 0; k < used.size(); ++k)
      fine[k] = std::max(0.0, fine[k] + (aim * 1.02 - now) / norm * beyond[k] / devices[k]);
    return true;
  }
};

}  // namespace hetsched::detail
