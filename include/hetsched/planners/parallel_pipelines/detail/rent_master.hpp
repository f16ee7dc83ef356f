// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/rent_master_test.cpp.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>

namespace hetsched::detail {

/// What rents are to be chosen by: a pipeline takes `first` and a period for each microbatch after the first one.
struct rented_pipeline {
  double first = 0, period = 0;
  std::vector<int> devices;  // by subcluster
};

/// How many pipelines a set may have.
struct pipeline_count {
  int fewest = 2, most = std::numeric_limits<int>::max();
};

/// Rents in microbatches, of devices by subcluster; and what each pipeline gets off, or pays on top if that is below 0. All
/// devices cost together what is to be done, and what the fewest pipelines get off, or less what the most pay on top.
struct set_rents {
  double seconds = infinity;  // the least first + period * (rent - off - 1) of all pipelines
  std::vector<double> devices;
  double off = 0;
};

/// The rents at which the cheapest of these pipelines takes longest: dual prices of the deadline by which fractions of them, so
/// many in all, do all microbatches. `seconds` is infinity if none do. O(1) packings: see when_it_holds.
[[nodiscard]] inline set_rents highest_rents(std::span<const rented_pipeline> pipelines, const std::vector<int>& devices,
                                             pipeline_count number, int microbatches) {
  const int fewest = number.fewest, most = std::min(number.most, microbatches);
  const auto kinds = devices.size(), items = pipelines.size();
  set_rents found;
  if (items == 0) return found;
  // Besides devices: a reward for each pipeline up to the fewest, so large that none is left. It takes a pipeline, of which there
  // are as many as are made, and no more than the most.
  packing given{.items = {}, .room = {devices.begin(), devices.end()}};
  for (const int room : {0, fewest, most}) given.room.push_back(room);
  for (const auto& p : pipelines) {
    auto& item = given.items.emplace_back(packing::item{0, {p.devices.begin(), p.devices.end()}});
    for (const int takes : {-1, 0, 1}) item.takes.push_back(takes);
  }
  auto& reward = given.items.emplace_back(packing::item{0, std::vector<double>(kinds, 0)});
  for (const int takes : {1, 1, 0}) reward.takes.push_back(takes);

  const auto solve = [&](double seconds) {
    double largest = microbatches;
    for (std::size_t i = 0; i < items; ++i) {
      auto& value = given.items[i].value;
      value = std::max(0.0, (seconds - pipelines[i].first) / std::max(pipelines[i].period, least_period_s) + 1);
      largest = std::max(largest, value);
    }
    given.items.back().value = 2 * largest;
    auto solved = solve_relaxed(given);
    solved.value -= 2 * largest * fewest;
    return solved;
  };
  constexpr double far = 8;
  double late = 0;
  std::vector<double> periods;
  for (const auto& p : pipelines) {
    late = std::max(late, p.first + p.period);
    periods.push_back(p.period);
  }
  if (!(late > 0)) return found;
  const auto by = [&](const auto& solved) {
    const double off = solved.prices[kinds], on_top = solved.prices[kinds + 2];
    double all = 0;
    for (std::size_t k = 0; k < kinds; ++k) all += solved.prices[k] * devices[k];
    const double total = all - off * fewest + on_top * most;
    // Where not even the fewest fit, any scale will do.
    const double scale = total > tolerance::sums * (all + on_top) ? microbatches / total : all > 0 ? far * microbatches / all : 0;
    for (std::size_t k = 0; k < kinds; ++k) found.devices.push_back(solved.prices[k] * scale);
    found.off = (off - on_top) * scale;
    return scale > 0 && total > tolerance::sums * (all + on_top);
  };
  const double first_late = late;
  while (solve(late).value < microbatches)
    if ((late *= 2) > 1e6 * microbatches * first_late) {
      (void)by(solve(first_late));
      return found;
    }
  const auto [seconds, solved] = when_it_holds(microbatches, late, periods, solve);
  if (by(solved)) found.seconds = seconds;
  return found;
}

}  // namespace hetsched::detail
