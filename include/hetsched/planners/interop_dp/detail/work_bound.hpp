// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/work_bound_test.cpp.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// What the devices cost at the least that one microbatch passes, by the work alone: each layer costs what the cheapest placement
/// takes from its devices. `rents`: of a device for a second, by subcluster.
/// 0 where stages' times are not the sums of their layers'. O(placements * layers).
[[nodiscard]] inline double least_work(const interop_problem& problem, const stage_prices& table, std::span<const double> rents) {
  if (!table.additive()) return 0;
  double sum = 0;
  for (int l = 0; l < problem.layers; ++l) {
    double least = infinity;
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      least = std::min(least, at(rents, placed.subcluster) * placed.devices * table.time(static_cast<int>(p), l, l + 1));
    }
    sum += least;
  }
  return sum * (1 - tolerance::sums);
}

/// What layers take at the least on the placements that were added.
class layer_work {
 public:
  layer_work(std::size_t subclusters, int layers)
      : least_(subclusters, std::vector<double>(as_size(layers), infinity)),
        fastest_(as_size(layers), infinity),
        speed_(subclusters) {}

  /// A placement on so many devices. seconds_of(l): what layer l takes there, forward and backward.
  template <class Seconds>
  void add(int subcluster, int devices, Seconds seconds_of) {
    double all = 0;
    auto& own = at(least_, subcluster);
    for (std::size_t l = 0; l < fastest_.size(); ++l) {
      const double s = seconds_of(static_cast<int>(l));
      fastest_[l] = std::min(fastest_[l], s);
      own[l] = std::min(own[l], devices * s);
      all += s;
    }
    at(speed_, subcluster) = std::max(at(speed_, subcluster), 1 / (all * devices));
  }

  /// Seconds that so many devices of each subcluster take for a microbatch at the least, if all of them work all of the time: a
  /// device second of subcluster k pays r_k such that one second of all devices pays 1. The rents are in proportion to speed. A
  /// dual of the linear program that shares out layers among devices. O(subclusters * layers).
  [[nodiscard]] double shared_out(std::span<const int> devices) const {
    double all = 0, sum = 0;
    for (std::size_t k = 0; k < speed_.size(); ++k) all += speed_[k] * devices[k];
    if (!(all > 0) || !(all < infinity)) return 0;
    for (std::size_t l = 0; l < fastest_.size(); ++l) {
      double least = infinity;
      for (std::size_t k = 0; k < speed_.size(); ++k)
        if (speed_[k] > 0) least = std::min(least, speed_[k] / all * least_[k][l]);
      sum += least;
    }
    return sum * (1 - tolerance::sums);
  }
  /// Seconds that a microbatch takes at the least through all layers and back. No iteration is shorter.
  [[nodiscard]] double passage() const { return std::accumulate(fastest_.begin(), fastest_.end(), 0.0) * (1 - tolerance::sums); }

 private:
  std::vector<std::vector<double>> least_;  // device seconds, by subcluster and layer
  std::vector<double> fastest_;             // by layer
  std::vector<double> speed_;               // microbatches of a device second, by subcluster
};

/// Seconds that no set of pipelines does so many microbatches in, by the work alone. 0 where stages' times are not the sums of
/// their layers'. O(placements * layers).
[[nodiscard]] inline double work_bound(const interop_problem& problem, const stage_prices& table, int microbatches) {
  if (!table.additive()) return 0;
  layer_work work(problem.devices.size(), problem.layers);
  for (std::size_t p = 0; p < problem.placements.size(); ++p) {
    const auto& placed = problem.placements[p];
    const int number = static_cast<int>(p);
    work.add(placed.subcluster, placed.devices, [&](int l) { return table.time(number, l, l + 1); });
  }
  return microbatches * work.shared_out(problem.devices);
}

}  // namespace hetsched::detail
