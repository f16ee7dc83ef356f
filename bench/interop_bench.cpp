// SPDX-License-Identifier: Apache-2.0
// Speed of the inter-operator planner: a whole search, the search's own cost tables included. Counters: dynamic programs solved
// and labels kept; stages, largest warm-up count and largest share of memory in use of the plan; the objective; the process's
// peak memory so far, which is that of one search when --benchmark_filter picks one. A search that takes longer than thirty
// seconds is stopped and shown as an error.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

namespace {

using namespace hetsched;

subcluster nodes_of_8(const char* name, const char* device, int nodes, double intra_gbit, double inter_gbit) {
  return {name, *find_device(device), nodes, 8, {5e-6, gbit_per_s(intra_gbit)}, {10e-6, gbit_per_s(inter_gbit)}};
}

// 5 Gbit/s between any two subclusters.
cluster joined(std::vector<subcluster> parts) {
  cluster c{std::move(parts), {}};
  for (int b = 1; b < static_cast<int>(c.subclusters.size()); ++b)
    for (int a = 0; a < b; ++a) c.links.push_back({a, b, {50e-6, gbit_per_s(5)}});
  return c;
}

cluster two_types(int nodes) {
  return joined({nodes_of_8("v100", "V100-SXM2-32GB", nodes, 1200, 200), nodes_of_8("a100", "A100-SXM4-40GB", nodes, 2400, 200)});
}

cluster four_types(int nodes) {
  return joined({nodes_of_8("v100", "V100-SXM2-32GB", nodes, 1200, 200), nodes_of_8("a100", "A100-SXM4-40GB", nodes, 2400, 200),
                 nodes_of_8("a100-80", "A100-SXM4-80GB", nodes, 2400, 200),
                 nodes_of_8("h100", "H100-SXM5-80GB", nodes, 3600, 400)});
}

// GPT with three layers a block; the last block is cut short where the number of layers asks for it.
layer_chain gpt_chain(int layers, int hidden) {
  const int blocks = layers / 3;
  auto chain = make_chain(gpt({.layers = blocks, .hidden = hidden, .heads = hidden / 128, .vocab = 51200, .sequence = 1024}),
                          granularity::sublayer);
  chain.layers.erase(chain.layers.begin() + layers - 1, chain.layers.end() - 1);
  return chain;
}

void count(benchmark::State& state, const plan& found) {
  int warmup = 0;
  double memory = 0;
  for (const auto& s : found.pipelines.front().stages) {
    warmup = std::max(warmup, s.warmup);
    memory = std::max(memory, static_cast<double>(s.memory_bytes) / static_cast<double>(s.memory_capacity_bytes));
  }
  for (const auto& [name, times] : found.evidence->work)
    state.counters[name == "evaluations" ? "programs" : name] = static_cast<double>(times);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["stages"] = static_cast<double>(found.pipelines.front().stages.size());
  state.counters["warmup"] = warmup;
  state.counters["memory"] = memory;
  state.counters["objective"] = found.evidence->objective_value;
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

template <stage_cost_model Costs>
void plan_with(benchmark::State& state, const cluster& hardware, const Costs& costs, planning_problem problem,
               const interop_options& options = {}) {
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    problem.progress = [start](const search_progress&) {
      return std::chrono::steady_clock::now() - start < std::chrono::seconds(30);
    };
    const auto found = interop_dp(hardware, costs, problem, options);
    if (!found || !found->evidence->complete) {
      const bool infeasible = !found && found.why_not().why == refusal::kind::infeasible;
      state.SkipWithError(infeasible ? "no plan" : "stopped after 30 s");
      return;
    }
    count(state, *found);
  }
}

planning_problem with(int microbatches, int microbatch_size) {
  return {.microbatches = microbatches, .microbatch_size = microbatch_size};
}

analytic_options trained(int microbatch_size, recomputation recompute) {
  return {.microbatch_size = microbatch_size, .recompute = {recompute}, .overheads = {}};
}

// Memory as earlier versions counted it, so that their figures compare: what microbatches in flight keep, and no more.
struct live_tensors {
  analytic_cost_model model;

  [[nodiscard]] int layer_count() const { return model.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return model.placements(mesh); }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto cost = model.layer(index, where);
    cost.temporary_bytes = 0;
    return cost;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    return model.transfer(boundary, from, to);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return model.update(layers, where); }
  [[nodiscard]] static constexpr int transfer_class(const placement&) { return 0; }
};

// A model of which the planner cannot know that it is additive: a table of costs by placement, first and last layer.
struct interval_costs {
  const live_tensors& model;
  std::vector<placement> known;
  std::vector<stage_cost> cells;

  interval_costs(const cluster& hardware, const live_tensors& m) : model(m) {
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
        for (const auto& p : m.placements(mesh)) known.push_back(p);
    const int layers = m.layer_count();
    cells.resize(known.size() * row() * row());
    for (std::size_t p = 0; p < known.size(); ++p)
      for (int first = 0; first < layers; ++first) {
        stage_cost sum;
        for (int last = first + 1; last <= layers; ++last) cells[cell(p, {first, last})] = sum += m.layer(last - 1, known[p]);
      }
  }

  [[nodiscard]] std::size_t row() const { return static_cast<std::size_t>(model.layer_count() + 1); }
  [[nodiscard]] std::size_t cell(std::size_t p, layer_range r) const {
    return (p * row() + static_cast<std::size_t>(r.first)) * row() + static_cast<std::size_t>(r.last);
  }

  [[nodiscard]] int layer_count() const { return model.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return model.placements(mesh); }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    return cells[cell(static_cast<std::size_t>(std::find(known.begin(), known.end(), where) - known.begin()), layers)];
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    return model.transfer(boundary, from, to);
  }
};

// GPT-39B in 146 layers on 32 V100 and 32 A100.
void gpt39b(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = two_types(4);
  const live_tensors costs{{hardware, gpt_chain(146, 8192), trained(size, static_cast<recomputation>(state.range(1)))}};
  plan_with(state, hardware, costs, with(128, size), {.warmup = rule});
}

// The same with all that a training process holds, and with the ways of saving memory left to the planner.
void gpt39b_process(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = two_types(4);
  using enum recomputation;
  const analytic_cost_model costs(hardware, gpt_chain(146, 8192),
                                  {.microbatch_size = size, .recompute = {none, selective, full}, .zero = {0, 1, 2, 3}});
  plan_with(state, hardware, costs, with(128, size), {.warmup = rule});
}

void gpt39b_intervals(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = two_types(4);
  const live_tensors model{{hardware, gpt_chain(146, 8192), trained(size, static_cast<recomputation>(state.range(1)))}};
  plan_with(state, hardware, interval_costs(hardware, model), with(128, size), {.warmup = rule});
}

// 1024 layers on 1024 devices of four types; a hidden size of 8192 makes 275, one of 12288 makes 619 billion parameters.
void large(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(2));
  const auto hardware = four_types(32);
  const live_tensors costs{{hardware, gpt_chain(1024, static_cast<int>(state.range(0))), trained(size, recomputation::full)}};
  plan_with(state, hardware, costs, with(static_cast<int>(state.range(1)), size), {.warmup = rule});
}

void growth(benchmark::State& state, const cluster& hardware, int hidden) {
  constexpr int size = 4;
  const live_tensors costs{{hardware, gpt_chain(static_cast<int>(state.range(0)), hidden), trained(size, recomputation::full)}};
  plan_with(state, hardware, costs, with(128, size));
}

cluster with_devices(cluster (*make)(int), std::int64_t devices) {
  return make(static_cast<int>(devices) / make(1).device_count());
}

// A model that leaves memory to spare.
void growth_loose(benchmark::State& state, cluster (*make)(int)) { growth(state, with_devices(make, state.range(1)), 2048); }

// A model whose weights, gradients and optimizer states fill a quarter of the cluster's memory.
void growth_tight(benchmark::State& state, cluster (*make)(int)) {
  const auto hardware = with_devices(make, state.range(1));
  double bytes = 0;
  for (const auto& s : hardware.subclusters) bytes += static_cast<double>(s.device.memory_bytes) * s.device_count();
  const double parameters = bytes / 4 / 16;  // of 12 * hidden^2 in every block of three layers
  growth(state, hardware,
         1024 * static_cast<int>(1 + std::sqrt(parameters / (4.0 * static_cast<double>(state.range(0)))) / 1024));
}

// The recurrence as its paper has it (HARP Eq. 13-19): one t_max after the other, every cut looked at, one count per state, all
// devices in use. Without the paper's number of stages in the state, which changes nothing, and with its stop when t_max alone is
// too long.
double textbook(const cluster& hardware, const live_tensors& costs, int microbatches) {
  constexpr double none = std::numeric_limits<double>::infinity();
  const int layers = costs.layer_count();
  struct option {
    placement where;
    std::vector<stage_cost> cost;  // by first * (layers + 1) + last
  };
  const auto cell = [&](int first, int last) { return static_cast<std::size_t>(first * (layers + 1) + last); };
  std::vector<std::vector<option>> options;  // by subcluster
  std::vector<double> times;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    auto& own = options.emplace_back();
    for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
      for (const auto& where : costs.placements(mesh)) {
        auto& o = own.emplace_back(option{where, std::vector<stage_cost>(cell(layers, layers) + 1)});
        for (int first = 0; first < layers; ++first) {
          stage_cost sum;
          for (int last = first + 1; last <= layers; ++last) {
            o.cost[cell(first, last)] = sum += costs.layer(last - 1, where);
            times.push_back(sum.total_s());
          }
        }
      }
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());

  const int devices = hardware.device_count();
  struct state {
    double latency;
    int warmup;
  };
  std::vector<state> best(static_cast<std::size_t>((layers + 1) * (devices + 1)));
  const auto at = [&](int layer, int used) -> state& { return best[static_cast<std::size_t>(layer * (devices + 1) + used)]; };
  double least = none;
  for (const double t_max : times) {
    if ((microbatches - 1) * t_max >= least) break;
    std::fill(best.begin(), best.end(), state{none, 0});
    at(layers, 0) = {0, 0};
    int before = 0;  // devices of the subclusters behind; the last one of the cluster ends the pipeline
    for (int k = static_cast<int>(hardware.subclusters.size()) - 1; k >= 0; --k) {
      const auto& s = hardware.subclusters[static_cast<std::size_t>(k)];
      for (int used = before + 1; used <= before + s.device_count(); ++used)
        for (int first = layers - 1; first >= 0; --first)
          for (const auto& o : options[static_cast<std::size_t>(k)]) {
            const int left = used - o.where.mesh.device_count();
            if (left < before) continue;
            for (int last = first + 1; last <= layers; ++last) {
              const auto& next = at(last, left);
              const auto& cost = o.cost[cell(first, last)];
              if (next.latency == none || cost.total_s() > t_max) continue;
              const int behind = left == before ? k + 1 : k;
              const double c = last == layers ? 0 : costs.transfer(last - 1, o.where, {{behind, 1, 1}, {}}).forward_s;
              if (c > t_max) continue;
              const int warmup = last == layers ? 1 : next.warmup + h1f1b_step(c, t_max);
              const double memory = static_cast<double>(cost.weight_bytes) +
                                    static_cast<double>(warmup) * static_cast<double>(cost.activation_bytes);
              const double latency = next.latency + cost.total_s() + 2 * c;
              if (memory <= static_cast<double>(s.device.memory_bytes) && latency < at(first, used).latency)
                at(first, used) = {latency, warmup};
            }
          }
      before += s.device_count();
    }
    least = std::min(least, at(0, devices).latency + (microbatches - 1) * t_max);
  }
  return least;
}

// GPT of 2.6 billion parameters in 66 layers on 8 V100 and two nodes of 2 A100, with memory to spare; no two layers take the same
// time, as if they were measured.
struct small_case {
  static layer_chain chain() {
    auto c = make_chain(gpt({.layers = 64, .hidden = 1792, .heads = 16, .vocab = 51200, .sequence = 1024}));
    random_source random(7);
    for (auto& l : c.layers) {
      l.forward_flops *= random.uniform(0.95, 1.05);
      l.backward_flops *= random.uniform(0.95, 1.05);
    }
    return c;
  }

  cluster hardware = [] {
    auto v100 = nodes_of_8("v100", "V100-SXM2-32GB", 1, 1200, 200);
    auto a100 = nodes_of_8("a100", "A100-SXM4-40GB", 2, 2400, 200);
    a100.devices_per_node = 2;
    return joined({std::move(v100), std::move(a100)});
  }();
  live_tensors costs{{hardware, chain(), trained(4, recomputation::full)}};
  planning_problem problem{.microbatches = 64, .microbatch_size = 4, .use_all_devices = true};
  interop_options options{.order = subcluster_order::as_given, .near_tie = 0};
};

void small_textbook(benchmark::State& state) {
  const small_case c;
  double objective = 0;
  for (auto _ : state) objective = textbook(c.hardware, c.costs, c.problem.microbatches);
  const auto found = interop_dp(c.hardware, c.costs, c.problem, c.options);
  state.counters["objective"] = objective;
  if (!found || std::abs(found->evidence->objective_value - objective) > 1e-9 * objective)
    state.SkipWithError("interop_dp finds another objective");
}

void small_interop_dp(benchmark::State& state) {
  const small_case c;
  plan_with(state, c.hardware, c.costs, c.problem, c.options);
}

void realistic(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 2, 4, 8}, {0, 2}})->ArgNames({"samples", "recompute"})->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(gpt39b, h1f1b, warmup_rule::h1f1b)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, exact, warmup_rule::exact)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, 1f1b, warmup_rule::one_f_one_b)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, eager, warmup_rule::eager)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b_process, h1f1b, warmup_rule::h1f1b)->ArgName("samples")->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gpt39b_process, exact, warmup_rule::exact)->ArgName("samples")->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gpt39b_intervals, h1f1b, warmup_rule::h1f1b)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b_intervals, exact, warmup_rule::exact)->Apply(realistic);

BENCHMARK_CAPTURE(large, h1f1b, warmup_rule::h1f1b)
    ->ArgsProduct({{4096, 8192, 12288}, {128, 256, 512}, {1, 8}})
    ->ArgNames({"hidden", "microbatches", "samples"})
    ->Unit(benchmark::kMillisecond);

void grid(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{128, 256, 512, 1024}, {32, 64, 128, 256, 512, 1024}})
      ->ArgNames({"layers", "devices"})
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(growth_loose, two_subclusters, two_types)->Apply(grid);
BENCHMARK_CAPTURE(growth_loose, four_subclusters, four_types)->Apply(grid);
BENCHMARK_CAPTURE(growth_tight, two_subclusters, two_types)->Apply(grid);
BENCHMARK_CAPTURE(growth_tight, four_subclusters, four_types)->Apply(grid);

BENCHMARK(small_textbook)->Unit(benchmark::kMillisecond);
BENCHMARK(small_interop_dp)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
