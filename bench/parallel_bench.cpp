// SPDX-License-Identifier: Apache-2.0
// Searches for parallel pipelines: seconds, the plan's iteration and that of one pipeline, and the gap to the bound in percent.
#include <benchmark/benchmark.h>

#include <hetsched/planners/parallel_pipelines.hpp>

#include "instances.hpp"

namespace {

using namespace hetsched;

/// `cross`: Gbit/s between subclusters.
void search(benchmark::State& state, cluster hardware, int hidden, int microbatch_size, int batch, double cross) {
  for (auto& l : hardware.links) l.link.bandwidth = gbit_per_s(cross);
  const analytic_cost_model costs(hardware, bench::gpt_chain(146, hidden), bench::trained(microbatch_size, recomputation::full));
  const auto asked = bench::with(batch / microbatch_size, microbatch_size);
  outcome<plan> found = refusal{};
  for (auto _ : state) found = parallel_pipelines(hardware, costs, asked);
  if (!found) return state.SkipWithError(found.why_not().reason.c_str());
  const auto one = interop_dp(hardware, costs, asked);
  state.counters["iteration_s"] = found->predicted.iteration_s;
  state.counters["one_pipeline_s"] = one ? one->predicted.iteration_s : 0;
  state.counters["pipelines"] = static_cast<double>(found->pipelines.size());
  state.counters["gap_percent"] = 100 * (found->evidence->objective_value / found->evidence->objective_bound - 1);
}

void gpus_64(benchmark::State& state) {
  search(state, bench::subclusters(2, 4), static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 128,
         static_cast<double>(state.range(2)));
}
BENCHMARK(gpus_64)
    ->ArgNames({"hidden", "size", "gbit"})
    ->ArgsProduct({{2048, 8192}, {1, 4}, {5, 100}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

/// Six kinds of machines, 40 nodes.
void gpus_320(benchmark::State& state) {
  std::vector<subcluster> parts;
  for (const auto& kind : bench::machines) parts.push_back(bench::nodes_of_8(kind.name, kind, 7));
  parts.push_back(bench::nodes_of_8("a40", {"a40", "A40", 200, 100}, 6));
  parts.push_back(bench::nodes_of_8("l40s", {"l40s", "L40S", 200, 200}, 6));
  search(state, bench::joined(std::move(parts)), 4096, static_cast<int>(state.range(0)), 640,
         static_cast<double>(state.range(1)));
}
BENCHMARK(gpus_320)->ArgNames({"size", "gbit"})->ArgsProduct({{1, 4}, {5, 100}})->Unit(benchmark::kMillisecond)->Iterations(1);

void gpus_1024(benchmark::State& state) {
  search(state, bench::subclusters(4, 32), 4096, static_cast<int>(state.range(0)), 2048, static_cast<double>(state.range(1)));
}
BENCHMARK(gpus_1024)->ArgNames({"size", "gbit"})->ArgsProduct({{1, 4}, {5, 100}})->Unit(benchmark::kMillisecond)->Iterations(1);

void gpus_4096(benchmark::State& state) { search(state, bench::subclusters(8, 64), 4096, 1, 8192, 5); }
BENCHMARK(gpus_4096)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
