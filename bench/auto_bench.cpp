// SPDX-License-Identifier: Apache-2.0
// auto_schedule on unequal stages (speeds within a factor of 2.4, links of up to 3 forwards): time, and the gap to the lower
// bound.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>
#include <hetsched/schedule/search/min_memory.hpp>

namespace {

using namespace hetsched;

struct instance {
  pipeline times;
  auto_options options;
};

/// Memory for `percent` of the microbatches that 1F1B holds; 0: no limits.
instance random_instance(random_source& random, int stages, int percent) {
  instance n;
  for (int i = 0; i < stages; ++i) {
    const double f = random.uniform(1.0, 2.4), w = f * random.uniform(0.6, 1.1);
    n.times.forward_s.push_back(f);
    n.times.backward_s.push_back(f * random.uniform(0.8, 1.3) + w);
    n.times.weight_backward_s.push_back(w);
    if (i > 0) n.times.transfer_s.push_back(random.uniform(0.0, 3.0));
    if (percent > 0) n.options.memory_capacity.push_back(std::max(1, percent * (stages - i) / 100));
  }
  return n;
}

std::vector<instance> random_instances(int stages, int percent) {
  random_source random(1);
  std::vector<instance> set;
  for (int n = 0; n < 10; ++n) set.push_back(random_instance(random, stages, percent));
  return set;
}

/// Ranks, microbatches, memory in percent of 1F1B's.
void auto_schedules(benchmark::State& state) {
  const auto set = random_instances(static_cast<int>(state.range(0)), static_cast<int>(state.range(2)));
  const int microbatches = static_cast<int>(state.range(1));
  double mean = 0, worst = 0;
  for (const auto& n : set) {
    const double gap = auto_schedule(n.times, microbatches, n.options)->gap();
    mean += gap / static_cast<double>(set.size());
    worst = std::max(worst, gap);
  }
  std::size_t k = 0;
  for (auto _ : state) {
    const auto& n = set[k++ % set.size()];
    benchmark::DoNotOptimize(auto_schedule(n.times, microbatches, n.options));
  }
  state.counters["mean_gap_percent"] = 100 * mean;
  state.counters["worst_gap_percent"] = 100 * worst;
}
BENCHMARK(auto_schedules)
    ->ArgNames({"ranks", "microbatches", "memory"})
    ->Args({4, 6, 200})
    ->Args({8, 32, 100})
    ->Args({8, 32, 200})
    ->Args({8, 32, 0})
    ->Args({16, 256, 100})
    ->Args({16, 256, 200})
    ->Args({16, 256, 0})
    ->Args({64, 1024, 200})
    ->Args({64, 1024, 0})
    ->Unit(benchmark::kMillisecond);

void least_memory(benchmark::State& state) {
  const auto set = random_instances(static_cast<int>(state.range(0)), 0);
  const int microbatches = static_cast<int>(state.range(1));
  std::size_t k = 0;
  for (auto _ : state) {
    const auto& n = set[k++ % set.size()];
    benchmark::DoNotOptimize(min_memory(n.times, microbatches, 1.05 * auto_schedule(n.times, microbatches)->makespan_s));
  }
}
BENCHMARK(least_memory)->ArgNames({"ranks", "microbatches"})->Args({8, 32})->Args({16, 256})->Unit(benchmark::kMillisecond);

}  // namespace
