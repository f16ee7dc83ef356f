// SPDX-License-Identifier: Apache-2.0
// How long the stages of 96 layers on 64 devices of 6 types take to place, with too little memory for the fast ones alone.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/placement/search.hpp>

namespace {

using namespace hetsched;

// Types from 1 to 4 times as slow as the first, with 4 to 24 layers' memory; links within and between them of mixed speed.
placement_chain instance(std::uint64_t seed, int layers) {
  random_source random(seed);
  placement_chain chain{.layers = layers};
  const int counts[] = {6, 8, 10, 12, 12, 16};
  for (int p = 0; p < 6; ++p) {
    chain.pools.push_back({.count = counts[p]});
    placement_kind kind{.pool = p, .seconds_before = {0}, .state_before = {0}, .in_flight_before = {0}};
    const double slow = random.uniform(1, 4), room = random.uniform(0.03, 0.08) * layers;
    for (int l = 0; l < layers; ++l) {
      const double work = l == 0 ? 0.1 : l == layers - 1 ? 1.3 : 1;
      kind.seconds_before.push_back(kind.seconds_before.back() + 0.01 * slow * work);
      kind.state_before.push_back(kind.state_before.back() + 1);
      kind.in_flight_before.push_back(kind.in_flight_before.back() + 0.05);
      kind.temporary.push_back(0.3);
    }
    kind.memory = {.room = room, .scale = 1.06};
    chain.kinds.push_back(kind);
  }
  std::vector<placement_transfer> between;
  for (int n = 0; n < 36; ++n) {
    const double seconds = random.uniform(0.0005, 0.02);
    between.push_back({seconds, seconds});
  }
  for (int b = 0; b + 1 < layers; ++b) chain.transfers.insert(chain.transfers.end(), between.begin(), between.end());
  return chain;
}

void least_sum_of(benchmark::State& state) {
  const auto chain = instance(static_cast<std::uint64_t>(state.range(0)), 96);
  std::int64_t labels = 0;
  for (auto _ : state) labels = least_sum(chain).labels;
  state.counters["labels"] = static_cast<double>(labels);
}
BENCHMARK(least_sum_of)->DenseRange(1, 6)->Unit(benchmark::kMillisecond);

void least_slowest_of(benchmark::State& state) {
  const auto chain = instance(static_cast<std::uint64_t>(state.range(0)), 96);
  std::int64_t labels = 0;
  for (auto _ : state) labels = least_slowest(chain).labels;
  state.counters["labels"] = static_cast<double>(labels);
}
BENCHMARK(least_slowest_of)->DenseRange(1, 6)->Unit(benchmark::kMillisecond);

void least_iteration_of(benchmark::State& state) {
  const auto chain = instance(static_cast<std::uint64_t>(state.range(0)), 96);
  std::int64_t labels = 0;
  for (auto _ : state) labels = least_iteration(chain, 64).labels;
  state.counters["labels"] = static_cast<double>(labels);
}
BENCHMARK(least_iteration_of)->DenseRange(1, 6)->Unit(benchmark::kMillisecond);

}  // namespace
