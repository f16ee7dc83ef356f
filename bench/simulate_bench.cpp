// SPDX-License-Identifier: Apache-2.0
// Speed of the schedule room. Items are computations for makespan and check; for simulate also transfers, and listed receives.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/what_if.hpp>

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

/// Simulations of 64 ranks and 1,024 microbatches, or as many computations in another shape.
void simulate_case(benchmark::State& state, const hetsched::workload& w, const hetsched::schedule& order,
                   const hetsched::simulate_options& options = {}) {
  auto items = static_cast<std::int64_t>(hetsched::simulate(w, order, {.semantics = options.semantics}).timeline.actions.size());
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) items += hetsched::detail::is_receive(a.kind);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::simulate(w, order, options));
  state.SetItemsProcessed(state.iterations() * items);
}

hetsched::schedule h1f1b_order(int stages, int microbatches) {
  return hetsched::one_f_one_b(hetsched::warmup_counts(hetsched::warmup_rule::h1f1b, uneven(stages)), microbatches);
}

void simulate_h1f1b(benchmark::State& state) {
  const auto order = h1f1b_order(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  simulate_case(state, hetsched::make_workload(uneven(static_cast<int>(state.range(0))), order), order,
                {.timeline = state.range(2) != 0});
}
BENCHMARK(simulate_h1f1b)
    ->ArgsProduct({{64}, {1024}, {0, 1}})
    ->Args({8, 128, 1})
    ->ArgNames({"ranks", "microbatches", "timeline"})
    ->Unit(benchmark::kMillisecond);

void simulate_interleaved(benchmark::State& state) {
  const auto order = hetsched::interleaved_1f1b(16, 4, 1024);
  simulate_case(state, hetsched::make_workload(uneven(16), order), order);
}
BENCHMARK(simulate_interleaved)->Unit(benchmark::kMillisecond);

/// Four ranks to a node, one wire each way out of and into a node: every transfer between nodes asks for two wires.
void simulate_shared_wires(benchmark::State& state) {
  const auto order = hetsched::interleaved_1f1b(64, 2, 512);
  auto w = hetsched::make_workload(uneven(64), order);
  const int first = static_cast<int>(w.wires.size());
  for (int node = 0; node < 32; ++node) w.wires.push_back({"port", 2});
  for (int s = 0; s + 1 < order.stages; ++s) {
    const int from = order.rank(0, s) / 4, to = order.rank(0, s + 1) / 4;
    if (from == to) continue;
    auto& down = w.activations[static_cast<std::size_t>(s)].network;
    auto& up = w.gradients[static_cast<std::size_t>(s)].network;
    down.wires = {first + 2 * from, first + 2 * to + 1, -1};
    up.wires = {first + 2 * to, first + 2 * from + 1, -1};
  }
  simulate_case(state, w, order);
}
BENCHMARK(simulate_shared_wires)->Unit(benchmark::kMillisecond);

void simulate_listed_transfers(benchmark::State& state) {
  const auto order = hetsched::split_streams(hetsched::add_transfers(h1f1b_order(64, 1024)));
  simulate_case(state, hetsched::make_workload(uneven(64), order), order,
                {.semantics = state.range(0) != 0 ? hetsched::send_semantics::rendezvous : hetsched::send_semantics::buffered});
}
BENCHMARK(simulate_listed_transfers)->Arg(0)->Arg(1)->ArgName("rendezvous")->Unit(benchmark::kMillisecond);

void simulate_staged(benchmark::State& state) {
  const auto order = h1f1b_order(64, 1024);
  auto w = hetsched::make_workload(uneven(64), order);
  for (auto* paths : {&w.activations, &w.gradients})
    for (auto& r : *paths) {
      r.staged = true;
      for (auto* leg : {&r.d2h, &r.h2d}) {
        *leg = {.wires = {static_cast<int>(w.wires.size()), -1, -1}, .occupied_s = 0.1, .latency_s = 0};
        w.wires.push_back({"host", 1});
      }
    }
  simulate_case(state, w, order);
}
BENCHMARK(simulate_staged)->Unit(benchmark::kMillisecond);

void critical_path(benchmark::State& state) {
  const auto order = h1f1b_order(64, 1024);
  const auto w = hetsched::make_workload(uneven(64), order);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::critical_path(w, order));
}
BENCHMARK(critical_path)->Unit(benchmark::kMillisecond);

void what_if(benchmark::State& state) {
  const auto order = h1f1b_order(16, 256);
  const auto w = hetsched::make_workload(uneven(16), order);
  for (auto _ : state) benchmark::DoNotOptimize(hetsched::what_if(w, order));
}
BENCHMARK(what_if)->Unit(benchmark::kMillisecond);

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
