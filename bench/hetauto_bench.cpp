// SPDX-License-Identifier: Apache-2.0
// Rollouts per second of hetauto, by its own constants and by the paper's, on the paper's experiments, and how far it is from
// hetauto_exact; tables of costs included.
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

/// Experiment, seed: 5,000 rollouts under the least warm-ups, and how much longer the plan takes than hetauto_exact's.
void gap(benchmark::State& state) {
  const auto given = bench::hetauto_experiment(static_cast<int>(state.range(0)));
  const auto exact = hetauto_exact(given.hardware, given.costs, given.problem);
  hetauto_options options{.schedule = "exact_1f1b"};
  options.search.rollouts = 5'000;
  options.search.seed = static_cast<std::uint64_t>(state.range(1));
  for (auto _ : state)
    if (const auto found = hetauto(given.hardware, given.costs, given.problem, options))
      state.counters["gap"] = found->predicted.iteration_s / exact->predicted.iteration_s - 1;
}
BENCHMARK(gap)->ArgsProduct({{1, 2, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8}})->Iterations(1)->Unit(benchmark::kMillisecond);

void exact(benchmark::State& state) {
  const auto given = bench::hetauto_experiment(static_cast<int>(state.range(0)));
  for (auto _ : state)
    if (const auto found = hetauto_exact(given.hardware, given.costs, given.problem)) {
      state.counters["iteration_s"] = found->predicted.iteration_s;
      state.counters["bound_s"] = found->evidence->objective_bound;
    }
}
BENCHMARK(exact)->Arg(1)->Arg(2)->Arg(3)->Unit(benchmark::kMillisecond);

}  // namespace
