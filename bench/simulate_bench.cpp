// SPDX-License-Identifier: Apache-2.0
// Speed of the schedule room. Items are actions (one forward or one backward) for makespan and timeline.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule.hpp>

namespace {

hetsched::pipeline uneven(int stages) {
  hetsched::random_source random(7);
  hetsched::pipeline p;
  for (int i = 0; i < stages; ++i) {
    p.forward_s.push_back(random.uniform(0.8, 1.0));
    p.backward_s.push_back(random.uniform(1.6, 2.0));
    if (i + 1 < stages) p.transfer_s.push_back(random.uniform(0.0, 2.0));
  }
  return p;
}

void count_actions(benchmark::State& state) { state.SetItemsProcessed(state.iterations() * 2 * state.range(0) * state.range(1)); }

void makespan_h1f1b(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto warmups = hetsched::warmup_counts(hetsched::warmup_rule::h1f1b, p);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::makespan(p, warmups, static_cast<int>(state.range(1))));
  count_actions(state);
}
BENCHMARK(makespan_h1f1b)->ArgsProduct({{2, 4, 8, 16, 64, 256}, {16, 128, 4096}})->ArgNames({"stages", "microbatches"});

void makespan_gpipe(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto microbatches = static_cast<int>(state.range(1));
  const std::vector<int> warmups(p.forward_s.size(), microbatches);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::makespan(p, warmups, microbatches));
  count_actions(state);
}
BENCHMARK(makespan_gpipe)->Args({8, 128})->Args({64, 512})->ArgNames({"stages", "microbatches"});

void timeline(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto order =
      hetsched::one_f_one_b(hetsched::warmup_counts(hetsched::warmup_rule::h1f1b, p), static_cast<int>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::simulate(p, order));
  count_actions(state);
}
BENCHMARK(timeline)->Args({8, 128})->Args({64, 512})->ArgNames({"stages", "microbatches"})->Unit(benchmark::kMillisecond);

void check_order(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto order =
      hetsched::one_f_one_b(hetsched::warmup_counts(hetsched::warmup_rule::h1f1b, p), static_cast<int>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::check(order));
  count_actions(state);
}
BENCHMARK(check_order)->Args({64, 512})->ArgNames({"stages", "microbatches"})->Unit(benchmark::kMillisecond);

void period(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto warmups = hetsched::warmup_counts(hetsched::warmup_rule::h1f1b, p);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::period(p, warmups));
}
BENCHMARK(period)->Arg(4)->Arg(16)->Arg(64)->Arg(256)->ArgName("stages");

void fastest_period(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  const auto caps = hetsched::one_f_one_b_warmups(p.stages());
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::fastest_period(p, caps));
}
BENCHMARK(fastest_period)->Arg(4)->Arg(16)->Arg(64)->Arg(256)->ArgName("stages");

void lower_bound(benchmark::State& state) {
  const auto p = uneven(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::makespan_lower_bound(p, 512));
}
BENCHMARK(lower_bound)->Arg(4)->Arg(64)->Arg(256)->ArgName("stages");

}  // namespace

BENCHMARK_MAIN();
