// SPDX-License-Identifier: Apache-2.0
// Speed of resharding: plans as lists of messages, their prices, the choice among all strategies, and the price of a boundary as
// planners ask for it. Items are messages; of boundary_cost, prices.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/reshard.hpp>

namespace {

using namespace hetsched;

// Two subclusters of so many devices each, eight to a node.
struct instance {
  cluster hardware;
  std::vector<device_id> devices;
  layout from, to;
  placement here, there;
};

// From (data, tensor) = (n, 1) to (1, n): every pair of devices shares something. Typical: from (n/8, 8) to (n/16, 16).
instance make_instance(int n, bool worst) {
  instance i;
  for (const char* name : {"a", "b"})
    i.hardware.subclusters.push_back({name, {}, n / 8, 8, {2e-6, 600e9}, {10e-6, gbit_per_s(100)}});
  connect(i.hardware, "a", "b", {1e-4, gbit_per_s(10)});
  i.devices = devices_of(i.hardware, {{.mesh = {0, n / 8, 8}}, {.mesh = {1, n / 8, 8}}});
  i.here = {{0, n / 8, 8}, worst ? degrees{.data = n} : degrees{.data = n / 8, .tensor = 8}};
  i.there = {{1, n / 8, 8}, worst ? degrees{.tensor = n} : degrees{.data = n / 16, .tensor = 16}};
  i.from = boundary_layout(i.here.degrees, 1024, 8192, 4096);
  i.to = boundary_layout(i.there.degrees, 1024, 8192, 4096);
  return i;
}

instance instance_of(const benchmark::State& state) {
  return make_instance(static_cast<int>(state.range(0)), state.range(1) != 0);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{64, 1024}, {0, 1}})->ArgNames({"devices", "worst"})->Unit(benchmark::kMicrosecond);
}

void plan(benchmark::State& state, reshard_strategy strategy) {
  const auto i = instance_of(state);
  std::int64_t messages = 0;
  for (auto _ : state) {
    const auto p = plan_transfer(i.from, i.to, strategy, {.outer = 1});
    messages = static_cast<std::int64_t>(p.messages.size());
    benchmark::DoNotOptimize(p);
  }
  state.SetItemsProcessed(state.iterations() * messages);
  state.counters["messages"] = static_cast<double>(messages);
}

void price(benchmark::State& state) {
  const auto i = instance_of(state);
  const auto p = plan_transfer(i.from, i.to, reshard_strategy::direct);
  for (auto _ : state) benchmark::DoNotOptimize(price_of(p, i.hardware, i.devices, 2));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(p.messages.size()));
}
BENCHMARK(price)->Apply(sizes);

void choose(benchmark::State& state) {
  const auto i = instance_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(choose_reshard(i.hardware, i.devices, i.from, i.to, 2));
}
BENCHMARK(choose)->Apply(sizes);

void boundary(benchmark::State& state) {
  const auto i = instance_of(state);
  for (auto _ : state)
    benchmark::DoNotOptimize(boundary_cost(i.hardware, i.here, i.there, proximity::other_node, bytes_t{1} << 36));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(boundary)->ArgsProduct({{16, 64, 1024}, {0, 1}})->ArgNames({"devices", "worst"})->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  for (const auto s : all_reshard_strategies)
    benchmark::RegisterBenchmark(("plan/" + std::string(name_of(s))).c_str(), plan, s)->Apply(sizes);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
