// SPDX-License-Identifier: Apache-2.0
// Speed of the schedule language: 1F1B of so many ranks and microbatches through passes, checker and text. Items are listed
// actions.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

namespace {

using namespace hetsched;

schedule one_by_one(const benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0)), microbatches = static_cast<int>(state.range(1));
  std::vector<int> rank_of(static_cast<std::size_t>(ranks));
  std::iota(rank_of.begin(), rank_of.end(), 0);
  auto order = make_schedule(ranks, microbatches, std::move(rank_of));
  for (int r = 0; r < ranks; ++r) {
    auto& actions = order.lanes[static_cast<std::size_t>(r)].actions;
    for (int f = 0, b = 0; b < microbatches;) {
      if (f < microbatches && f - b < ranks - r)
        actions.push_back({action_kind::forward, false, 0, r, f++});
      else
        actions.push_back({action_kind::backward, false, 0, r, b++});
    }
  }
  return order;
}

schedule with_transfers(const benchmark::State& state) { return add_transfers(one_by_one(state)); }

schedule in_streams(const benchmark::State& state) {
  return split_streams(stage_transfers(with_transfers(state), [](int from, int to) { return from / 8 != to / 8; }));
}

template <class Work>
void measure(benchmark::State& state, const schedule& order, Work work) {
  std::int64_t actions = 0;
  for (const auto& l : order.lanes) actions += static_cast<std::int64_t>(l.actions.size());
  for (auto _ : state) {
    auto done = work(order);
    benchmark::DoNotOptimize(done);
  }
  state.SetItemsProcessed(state.iterations() * actions);
}

const auto checked = [](const schedule& order) { return check(order); };

void check_computations(benchmark::State& state) { measure(state, one_by_one(state), checked); }
void check_transfers(benchmark::State& state) { measure(state, with_transfers(state), checked); }
void check_groups(benchmark::State& state) { measure(state, group_transfers(with_transfers(state)), checked); }
void check_streams(benchmark::State& state) { measure(state, in_streams(state), checked); }

// A deadlock at the very end: the last two backwards of the first rank, each with its receive, are swapped.
void check_deadlock(benchmark::State& state) {
  auto order = with_transfers(state);
  auto& actions = order.lanes[0].actions;
  std::swap(actions[actions.size() - 1], actions[actions.size() - 3]);
  std::swap(actions[actions.size() - 2], actions[actions.size() - 4]);
  measure(state, order, checked);
}

void pass_transfers(benchmark::State& state) {
  measure(state, one_by_one(state), [](const schedule& order) { return add_transfers(order); });
}
void write_csv(benchmark::State& state) {
  measure(state, with_transfers(state), [](const schedule& order) { return to_csv(order); });
}
void read_csv(benchmark::State& state) {
  const auto order = with_transfers(state);
  measure(state, order, [text = to_csv(order)](const schedule&) { return parse_schedule_csv(text); });
}

void sizes(benchmark::internal::Benchmark* b) {
  b->Args({8, 64})->Args({64, 1024})->ArgNames({"ranks", "microbatches"})->Unit(benchmark::kMillisecond);
}

BENCHMARK(check_computations)->Apply(sizes);
BENCHMARK(check_transfers)->Apply(sizes);
BENCHMARK(check_groups)->Apply(sizes);
BENCHMARK(check_streams)->Apply(sizes);
BENCHMARK(check_deadlock)->Apply(sizes);
BENCHMARK(pass_transfers)->Apply(sizes);
BENCHMARK(write_csv)->Apply(sizes);
BENCHMARK(read_csv)->Apply(sizes);

}  // namespace
