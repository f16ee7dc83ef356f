// SPDX-License-Identifier: Apache-2.0
// Rollouts per second of hetauto, by its own constants and by the paper's, on the paper's experiments; tables of costs included.
#include <benchmark/benchmark.h>

#include <cstdint>

#include <hetsched/planners/hetauto.hpp>

#include "hetauto_instances.hpp"

namespace {

using namespace hetsched;

/// Experiment; whether with the paper's constants.
void rollouts(benchmark::State& state) {
  const auto given = bench::hetauto_experiment(static_cast<int>(state.range(0)));
  hetauto_options options;
  if (state.range(1) == 1) options.search = published_tree_search();
  options.search.rollouts = 100'000;
  std::int64_t done = 0;
  double best_s = 0;
  for (auto _ : state) {
    const auto found = hetauto(given.hardware, given.costs, given.problem, options);
    if (!found) continue;
    best_s = found->predicted.iteration_s;
    done += found->evidence->work.front().second;
  }
  state.SetItemsProcessed(done);
  state.counters["iteration_s"] = best_s;
}
BENCHMARK(rollouts)->ArgsProduct({{1, 2, 3}, {0, 1}})->Unit(benchmark::kMillisecond);

}  // namespace
