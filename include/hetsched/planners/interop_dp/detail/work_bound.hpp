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

/// The least that each layer takes on the placements that were added.
class layer_work {
 public:
  layer_work(std::size_t subclusters, int layers)
      : least_(subclusters, std::vector<double>(as_size(layers), infinity)),
        fastest_(as_size(layers), infinity),
        speed_(subclusters) {}

  /// Adds a placement of that many devices. seconds_of(l): forward and backward of layer l there.
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

  /// A lower bound on the seconds per microbatch of a cluster with these devices in each subcluster, as if none ever stood idle:
  /// device seconds are rented at prices in proportion to speed, such that one second of all devices costs 1. A dual of the
  /// linear program that shares out layers among devices. O(subclusters * layers).
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
  /// A lower bound on the seconds of one microbatch through all layers and back, and so on an iteration.
  [[nodiscard]] double passage() const { return std::accumulate(fastest_.begin(), fastest_.end(), 0.0) * (1 - tolerance::sums); }

 private:
  std::vector<std::vector<double>> least_;  // device seconds, by subcluster and layer
  std::vector<double> fastest_;             // by layer
  std::vector<double> speed_;               // microbatches of a device second, by subcluster
};

/// A lower bound, in seconds, on what any set of pipelines takes for these microbatches: their work alone. 0 where costs are not
/// additive. O(placements * layers).
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

/// The same without tables, and, where a schedule leaves backwards `whole`, no less than the passage of one microbatch: in
/// seconds, a lower bound on the iteration of every plan. 0 where go_on ended it or costs are not additive.
/// O(placements * layers), and what the book lacks.
[[nodiscard]] inline double work_bound(price_book& book, int microbatches, function_ref<bool()> go_on = {}, bool whole = true) {
  if (!book.additive()) return 0;
  const auto& all = book.hardware().subclusters;
  layer_work work(all.size(), book.layers());
  std::vector<int> devices;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const int number = static_cast<int>(k);
    devices.push_back(all[k].device_count());
    for (const auto& mesh : submeshes(all[k], number)) {
      if (go_on && !go_on()) return 0;
      for (const int p : book.placements(mesh)) {
        const auto layers = book.layers_on(p);
        work.add(number, mesh.device_count(), [&](int l) { return at(layers, l).total_s(); });
      }
    }
  }
  // The book's sums of gradients are those of one pipeline, and several add up less.
  const double spared_s = microbatches > 1 ? book.most_spared().seconds : 0;
  return std::max(0.0, std::max(microbatches * work.shared_out(devices), whole ? work.passage() : 0) - spared_s);
}

}  // namespace hetsched::detail
