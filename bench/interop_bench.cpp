// SPDX-License-Identifier: Apache-2.0
// Speed of the inter-operator planner: a whole call, the search's own cost tables included. A search ends by itself, proven or
// not. Counters: the iteration that the plan is predicted to take, the share of it by which the bound is lower (gap), whether the
// search was complete; searches run; stages of the plan, and its largest share of memory in use; the process's peak memory so
// far, which is that of one search when --benchmark_filter picks one.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "instances.hpp"

namespace {

using namespace hetsched;
using namespace bench;

void count_memory(benchmark::State& state) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

void count(benchmark::State& state, const plan& found) {
  double memory = 0;
  for (const auto& s : found.pipelines.front().stages)
    memory = std::max(memory, static_cast<double>(s.memory_bytes) / static_cast<double>(s.memory_capacity_bytes));
  const double iteration = found.predicted.iteration_s;
  for (const auto& [name, times] : found.evidence->work)
    if (name == "evaluations") state.counters["searches"] = static_cast<double>(times);
  state.counters["stages"] = static_cast<double>(found.pipelines.front().stages.size());
  state.counters["memory"] = memory;
  state.counters["iteration"] = iteration;
  state.counters["gap"] = (iteration - found.evidence->objective_bound) / iteration;
  state.counters["complete"] = found.evidence->complete;
  count_memory(state);
}

template <stage_cost_model Costs>
void plan_with(benchmark::State& state, const cluster& hardware, const Costs& costs, const planning_problem& problem,
               const interop_options& options = {}) {
  for (auto _ : state) {
    const auto found = interop_dp(hardware, costs, problem, options);
    if (!found) return state.SkipWithError(found.why_not().reason.c_str());
    count(state, *found);
  }
}

// What a time budget of 0 returns.
void first_plan(benchmark::State& state, const cluster& hardware, int layers, int hidden, int size) {
  const analytic_cost_model costs(hardware, gpt_chain(layers, hidden), trained(size, recomputation::full));
  auto problem = with(512, size);
  problem.progress = [](const search_progress&) { return false; };
  plan_with(state, hardware, costs, problem);
}

// Until it is known that there is no plan.
void refusal_of(benchmark::State& state, const cluster& hardware, int layers, int hidden) {
  const analytic_cost_model costs(hardware, gpt_chain(layers, hidden), trained(1, recomputation::full));
  for (auto _ : state) {
    const auto found = interop_dp(hardware, costs, with(512, 1));
    if (found || found.why_not().why != refusal::kind::infeasible) return state.SkipWithError("not refused");
    state.SetLabel(found.why_not().reason.substr(0, 60));
    count_memory(state);
  }
}

// A model of which the planner cannot know that it is additive: a table of costs by placement, first and last layer.
struct interval_costs {
  const analytic_cost_model& model;
  std::vector<placement> known;
  std::vector<stage_cost> cells;

  interval_costs(const cluster& hardware, const analytic_cost_model& m) : model(m) {
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
        for (const auto& p : m.placements(mesh)) known.push_back(p);
    const int layers = m.layer_count();
    cells.resize(known.size() * row() * row());
    for (std::size_t p = 0; p < known.size(); ++p)
      for (int first = 0; first < layers; ++first)
        for (int last = first + 1; last <= layers; ++last) cells[cell(p, {first, last})] = m.stage({first, last}, known[p]);
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
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return model.transfer(boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return model.update(layers, where); }
  [[nodiscard]] static std::int64_t transfer_class(const placement& where) { return analytic_cost_model::transfer_class(where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return model.boundary_class(boundary); }
};

// GPT-39B in 146 layers on 32 V100 and 32 A100.
void gpt39b(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = subclusters(2, 4);
  const analytic_cost_model costs(hardware, gpt_chain(146, 8192), trained(size, static_cast<recomputation>(state.range(1))));
  plan_with(state, hardware, costs, with(128, size), {.warmup = rule});
}

// The same with all that a training process holds, and with the ways of saving memory left to the planner.
void gpt39b_process(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = subclusters(2, 4);
  const analytic_cost_model costs(hardware, gpt_chain(146, 8192), trained_any_way(size));
  plan_with(state, hardware, costs, with(128, size), {.warmup = rule});
}

void gpt39b_intervals(benchmark::State& state, warmup_rule rule) {
  const int size = static_cast<int>(state.range(0));
  const auto hardware = subclusters(2, 4);
  const analytic_cost_model model(hardware, gpt_chain(146, 8192), trained(size, static_cast<recomputation>(state.range(1))));
  plan_with(state, hardware, interval_costs(hardware, model), with(128, size), {.warmup = rule});
}

// So many layers on subclusters of so many nodes; at 1024 layers, a hidden size of 8192 makes 275, one of 12288 makes 619 billion
// parameters.
void large(benchmark::State& state, const cluster& hardware, int layers) {
  const int size = static_cast<int>(state.range(2));
  const analytic_cost_model costs(hardware, gpt_chain(layers, static_cast<int>(state.range(0))),
                                  trained(size, recomputation::full));
  plan_with(state, hardware, costs, with(static_cast<int>(state.range(1)), size));
}

void growth(benchmark::State& state, const cluster& hardware, int hidden) {
  constexpr int size = 4;
  const analytic_cost_model costs(hardware, gpt_chain(static_cast<int>(state.range(0)), hidden),
                                  trained(size, recomputation::full));
  plan_with(state, hardware, costs, with(128, size));
}

cluster with_devices(int count, std::int64_t devices) { return subclusters(count, static_cast<int>(devices) / (8 * count)); }

// A model that leaves memory to spare.
void growth_loose(benchmark::State& state, int count) { growth(state, with_devices(count, state.range(1)), 2048); }

// A model whose weights, gradients and optimizer states fill a quarter of the cluster's memory.
void growth_tight(benchmark::State& state, int count) {
  const auto hardware = with_devices(count, state.range(1));
  double bytes = 0;
  for (const auto& s : hardware.subclusters) bytes += static_cast<double>(s.device.memory_bytes) * s.device_count();
  const double parameters = bytes / 4 / 16;  // of 12 * hidden^2 in every block of three layers
  growth(state, hardware,
         1024 * static_cast<int>(1 + std::sqrt(parameters / (4.0 * static_cast<double>(state.range(0)))) / 1024));
}

// Costs as a plain dynamic program can take them: no data parallelism, so that no transfer depends on degrees, one link between
// the nodes of a subcluster, and nothing at the end of the iteration.
struct tensor_parallel {
  analytic_cost_model model;

  [[nodiscard]] int layer_count() const { return model.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    auto all = model.placements(mesh);
    std::erase_if(all, [](const placement& p) { return p.degrees.data > 1; });
    return all;
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto cost = model.layer(index, where);
    cost.temporary_bytes = 0;
    return cost;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    return model.transfer(boundary, from, to);
  }
  [[nodiscard]] static constexpr int transfer_class(const placement&) { return 0; }
};

// The recurrence as its paper has it (HARP Eq. 13-19): one t_max after the other, every cut looked at, one count per state, all
// devices in use. Without the paper's number of stages in the state, which changes nothing, and with its stop when t_max alone is
// too long.
double textbook(const cluster& hardware, const tensor_parallel& costs, int microbatches) {
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
    auto v100 = nodes_of_8("v100", machines[0], 1);
    auto a100 = nodes_of_8("a100", machines[1], 2);
    a100.devices_per_node = 2;
    return joined({std::move(v100), std::move(a100)});
  }();
  tensor_parallel costs{{hardware, chain(), trained(4, recomputation::full)}};
  planning_problem problem{.microbatches = 64, .microbatch_size = 4, .use_all_devices = true};
  interop_options options{.warmup = warmup_rule::h1f1b, .order = subcluster_order::as_given, .gap = 0, .near_tie = 0};
};

void small_textbook(benchmark::State& state) {
  const small_case c;
  double objective = 0;
  for (auto _ : state) objective = textbook(c.hardware, c.costs, c.problem.microbatches);
  state.counters["objective"] = objective;
  const auto found = interop_dp(c.hardware, c.costs, c.problem, c.options);
  // The bound of a complete search is the least objective, or the plan's own iteration where that is shorter.
  if (!found || !found->evidence->complete ||
      std::abs(found->evidence->objective_bound - std::min(objective, found->predicted.iteration_s)) > 1e-9 * objective)
    state.SkipWithError("interop_dp proves another objective");
}

void small_interop_dp(benchmark::State& state) {
  const small_case c;
  plan_with(state, c.hardware, c.costs, c.problem, c.options);
}

void realistic(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 2, 4, 8}, {0, 2}})->ArgNames({"samples", "recompute"})->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(gpt39b, exact, warmup_rule::exact)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, h1f1b, warmup_rule::h1f1b)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, 1f1b, warmup_rule::one_f_one_b)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b, eager, warmup_rule::eager)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b_process, exact, warmup_rule::exact)->ArgName("samples")->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gpt39b_process, h1f1b, warmup_rule::h1f1b)->ArgName("samples")->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gpt39b_intervals, exact, warmup_rule::exact)->Apply(realistic);
BENCHMARK_CAPTURE(gpt39b_intervals, h1f1b, warmup_rule::h1f1b)->Apply(realistic);

void once(benchmark::internal::Benchmark* b) {
  b->ArgNames({"hidden", "microbatches", "samples"})->Iterations(1)->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(large, 1024_gpus_4_subclusters, subclusters(4, 32), 1024)
    ->ArgsProduct({{4096, 8192, 12288}, {128, 512}, {1, 4, 16}})
    ->Apply(once);
BENCHMARK_CAPTURE(large, 4096_gpus_8_subclusters, subclusters(8, 64), 1025)->ArgsProduct({{8192}, {512}, {1, 4}})->Apply(once);
BENCHMARK_CAPTURE(large, 1536_gpus_12_subclusters, subclusters(12, 16), 1025)->ArgsProduct({{8192}, {512}, {1, 4}})->Apply(once);

BENCHMARK_CAPTURE(first_plan, 64_gpus, subclusters(2, 4), 146, 8192, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_plan, 1024_gpus, subclusters(4, 32), 1024, 8192, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_plan, 1024_gpus_tight, subclusters(4, 32), 1024, 12288, 16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_plan, 4096_gpus, subclusters(8, 64), 1025, 8192, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_plan, 1536_gpus, subclusters(12, 16), 1025, 8192, 1)->Unit(benchmark::kMillisecond);

// Far too large.
BENCHMARK_CAPTURE(refusal_of, 64_gpus, subclusters(2, 4), 146, 32768)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(refusal_of, 1024_gpus, subclusters(4, 32), 1024, 65536)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(refusal_of, 4096_gpus, subclusters(8, 64), 1025, 65536)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(refusal_of, 1536_gpus, subclusters(12, 16), 1025, 65536)->Unit(benchmark::kMillisecond);

void grid(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{256, 1024}, {64, 256, 1024}})->ArgNames({"layers", "devices"})->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(growth_loose, two_subclusters, 2)->Apply(grid);
BENCHMARK_CAPTURE(growth_loose, four_subclusters, 4)->Apply(grid);
BENCHMARK_CAPTURE(growth_tight, two_subclusters, 2)->Apply(grid);
BENCHMARK_CAPTURE(growth_tight, four_subclusters, 4)->Apply(grid);

BENCHMARK(small_textbook)->Unit(benchmark::kMillisecond);
BENCHMARK(small_interop_dp)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
