// SPDX-License-Identifier: Apache-2.0
// How long programs for transformers take to find, on clusters like those of HAP (sec. 7.1), and what they save beside data
// parallelism with even shares (DP-EV) and with shares by speed (DP-CP). And what the host does to run one.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/cluster.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/spmd/spmd_layer.hpp>
#include <hetsched/spmd.hpp>
#include <hetsched/spmd/detail/shares.hpp>

#include "../tests/spmd/hap_models.hpp"

namespace {

using namespace hetsched;

struct sizes {
  int layers;
  std::int64_t batch, sequence, hidden, heads, input, classes;
  std::int64_t vocabulary = 0;  // 0: the input is not a text
};

/// An encoder: attention and a feed-forward block in each layer, then a classifier over each position.
tensor_graph encoder(const sizes& s) {
  tensor_graph g;
  const auto linear = [&](int x, std::int64_t from, std::int64_t to, const std::string& name) {
    return add_matmul(g, name, x, add_parameter(g, name + "_w", {from, to}));
  };
  const auto norm = [&](int x, const std::string& name) {
    const int weight = add_parameter(g, name + "_w", {s.hidden}), bias = add_parameter(g, name + "_b", {s.hidden});
    return add_layernorm(g, name, {x, weight, bias});
  };
  int x = -1;
  if (s.vocabulary > 0)
    x = add_embedding(g, "embedding", add_placeholder(g, "ids", {s.batch, s.sequence}),
                      add_parameter(g, "table", {s.vocabulary, s.hidden}));
  else
    x = linear(add_placeholder(g, "patches", {s.batch, s.sequence, s.input}), s.input, s.hidden, "embedding");
  for (int l = 0; l < s.layers; ++l) {
    const std::string layer = "layer" + std::to_string(l) + ".";
    const int a = norm(x, layer + "norm1");
    const auto heads = [&](const std::string& name) {
      const int y = linear(a, s.hidden, s.hidden, layer + name);
      return add_transpose(g, layer + name + "_heads",
                           add_reshape(g, layer + name + "_split", y, {s.batch, s.sequence, s.heads, s.hidden / s.heads}),
                           {0, 2, 1, 3});
    };
    const int q = heads("q"), k = heads("k"), v = heads("v");
    const int scores = add_matmul(g, layer + "scores", q, k, false, true);
    const int context = add_matmul(g, layer + "context", add_softmax(g, layer + "weights", scores), v);
    const int joined = add_reshape(g, layer + "joined", add_transpose(g, layer + "turned", context, {0, 2, 1, 3}),
                                   {s.batch, s.sequence, s.hidden});
    x = add_elementwise(g, layer + "sum1", "add", {x, linear(joined, s.hidden, s.hidden, layer + "out")}, {{0, 1}});
    const int up =
        add_elementwise(g, layer + "gelu", "gelu", {linear(norm(x, layer + "norm2"), s.hidden, 4 * s.hidden, layer + "up")});
    x = add_elementwise(g, layer + "sum2", "add", {x, linear(up, 4 * s.hidden, s.hidden, layer + "down")}, {{0, 1}});
  }
  add_sum(g, "loss", linear(norm(x, "norm"), s.hidden, s.classes, "head"));
  return g;
}

/// Machines with eight V100s and others with eight P100s, 10.4 Gbit/s between them.
cluster machines(int v100, int p100) {
  cluster c;
  const hetsched::link between{2e-5, 1.3e9};
  c.subclusters.push_back({.name = "v100",
                           .device = *find_device("V100-SXM2-16GB"),
                           .nodes = v100,
                           .devices_per_node = 8,
                           .intra_node = {1e-5, 120e9},
                           .inter_node = between});
  c.subclusters.push_back({.name = "p100",
                           .device = *find_device("P100-PCIe-16GB"),
                           .nodes = p100,
                           .devices_per_node = 8,
                           .intra_node = {1e-5, 12e9},
                           .inter_node = between});
  c.links.push_back({0, 1, between});
  return c;
}

void synthesis_of(benchmark::State& state, const sizes& model, const cluster& hardware, bool training) {
  std::vector<device_group> groups;
  for (int i = 0; i < static_cast<int>(hardware.subclusters.size()); ++i) {
    const auto& s = hardware.subclusters[static_cast<std::size_t>(i)];
    groups.push_back({.mesh = {i, s.nodes, s.devices_per_node}});
  }
  auto graph = encoder(model);
  tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
  if (training) goal = add_backward(graph, goal.loss);
  const auto problem = spmd::make_problem(hardware, devices_of(hardware, groups), std::move(graph), goal);
  std::optional<spmd::solution> found;
  for (auto _ : state) found = spmd::synthesize(*problem);
  const auto even = spmd::even_data_parallel(*problem);
  const auto by_speed =
      spmd::seconds_of(spmd::stages_of(*problem, even->program), hetsched::spmd::detail::shares_by_speed(*problem));
  state.counters["operators"] = problem->graph.size();
  state.counters["ms"] = found->seconds * 1e3;
  state.counters["gap_%"] = 100 * (found->seconds / found->bound - 1);
  state.counters["over_DP-EV"] = even->seconds / found->seconds;
  state.counters["over_DP-CP"] = by_speed / found->seconds;
}

cluster four_machines() {
  auto c = machines(1, 1);
  for (auto& s : c.subclusters) s.devices_per_node = 2;
  return c;
}

void vit(benchmark::State& state) {
  synthesis_of(state,
               {.layers = static_cast<int>(state.range(0)),
                .batch = 64,
                .sequence = 256,
                .hidden = 1024,
                .heads = 16,
                .input = 768,
                .classes = 1000},
               four_machines(), state.range(1) != 0);
}
BENCHMARK(vit)
    ->ArgNames({"layers", "training"})
    ->Args({24, 0})
    ->Args({24, 1})
    ->Args({357, 0})
    ->Args({139, 1})
    ->Unit(benchmark::kMillisecond);

// The program alone: most of a search is the proof.
void vit_program(benchmark::State& state) {
  auto graph = encoder({.layers = 24, .batch = 64, .sequence = 256, .hidden = 1024, .heads = 16, .input = 768, .classes = 1000});
  tensor_goal goal = add_backward(graph, graph.size() - 1);
  const auto hardware = four_machines();
  const auto devices = devices_of(hardware, {{.mesh = {0, 1, 2}}, {.mesh = {1, 1, 2}}});
  const auto problem = spmd::make_problem(hardware, devices, std::move(graph), std::move(goal));
  std::optional<spmd::solution> found;
  for (auto _ : state) found = spmd::synthesize(*problem, {.work = static_cast<double>(state.range(0))});
  state.counters["ms"] = found->seconds * 1e3;
  state.counters["gap_%"] = 100 * (found->seconds / found->bound - 1);
}
BENCHMARK(vit_program)->ArgName("work")->Arg(1)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

// VGG19, ViT, BERT-Base and BERT-MoE in HAP's settings.
void hap_setting(benchmark::State& state) {
  const auto problem = hap::problem(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)) / 8);
  std::optional<spmd::solution> found;
  for (auto _ : state) found = spmd::synthesize(problem);
  const auto even = spmd::even_data_parallel(problem);
  const auto by_speed = spmd::seconds_of(spmd::stages_of(problem, even->program), hap::by_speed(problem));
  state.counters["operators"] = problem.graph.size();
  state.counters["ms"] = found->seconds * 1e3;
  state.counters["gap_%"] = 100 * (found->seconds / found->bound - 1);
  state.counters["over_DP-EV"] = even->seconds / found->seconds;
  state.counters["over_DP-CP"] = by_speed / found->seconds;
}
BENCHMARK(hap_setting)->ArgNames({"model", "gpus"})->ArgsProduct({{0, 1, 2, 3}, {32, 64}})->Unit(benchmark::kMillisecond);

struct values {
  using value_type = float;
  values() = default;
  explicit values(const tensor_shape& s) : extents(s) {
    std::size_t n = 1;
    for (const auto e : s) n *= e;
    all.resize(n);
  }
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  [[nodiscard]] float* data() { return all.data(); }
  [[nodiscard]] const float* data() const { return all.data(); }
  tensor_shape extents;
  std::vector<float> all;
};

/// What the host does for each instruction besides the operator: kernels that do nothing, small tensors.
void host_time(benchmark::State& state) {
  using channel = thread_communicator<values>;
  const auto nothing = [](const spmd_call&, std::span<const values* const>, values&) {};
  tensor_graph graph = encoder({.layers = 4, .batch = 4, .sequence = 4, .hidden = 8, .heads = 4, .input = 8, .classes = 4});
  const auto goal = add_backward(graph, graph.size() - 1);
  const int devices = static_cast<int>(state.range(0));
  auto hardware = machines(1, 1);
  hardware.subclusters[0].devices_per_node = devices;
  const auto problem = std::make_shared<const spmd::problem>(
      *spmd::make_problem(hardware, devices_of(hardware, {{.mesh = {0, 1, devices}}}), std::move(graph), goal));
  const auto found = spmd::synthesize(*problem, {.work = 1});
  const spmd_parts parts(*problem, found->program, found->shares);
  std::size_t collectives = 0;
  for (const auto& step : found->program) collectives += step.collective;
  std::size_t steps = 0;
  constexpr int rounds = 200;
  for (auto _ : state)
    run_on_threads(channel::connect(devices), [&](channel& comm) {
      std::vector<int> all;
      for (int r = 0; r < devices; ++r) all.push_back(r);
      detail::rank_steps own(*problem, found->program, parts, comm.rank());
      if (comm.rank() == 0) steps = own.steps().size();
      detail::spmd_run<values, decltype(nothing)> run(problem, parts, own, axis_group<values, channel>(comm, all), nothing);
      auto held = run.make_values();
      std::vector<values> leaves(own.held().size());
      for (int node = 0; node < problem->graph.size(); ++node)
        if (const int leaf = own.leaf_of(node); leaf >= 0) {
          const auto at = static_cast<std::size_t>(leaf);
          leaves[at] = values(own.held()[at].shape);
          held.at[at] = &leaves[at];
        }
      for (int i = 0; i < rounds; ++i) run.run(held, false);
    });
  state.counters["instructions"] = static_cast<double>(steps);
  state.counters["collectives"] = static_cast<double>(collectives);
  state.counters["us_each"] = benchmark::Counter(static_cast<double>(steps) * rounds * 1e-6,
                                                 benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(host_time)->ArgName("devices")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
