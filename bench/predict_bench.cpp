// SPDX-License-Identifier: Apache-2.0
// Speed of predictions: single operators by kind, a model of 10,000 operators on one device, a query of forests of 100 trees, and
// the prices of GPT-39B's 146 layers on 32 V100 and 32 A100 by their operators, beside those by formula.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/forest.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>

namespace {

using namespace hetsched;

void one_operator(benchmark::State& state, const operator_shape& op) {
  const auto device = make_tile_device(catalogue_device("A100-SXM4-40GB"));
  operator_shape asked = op;
  for (auto _ : state) {
    benchmark::DoNotOptimize(asked);
    benchmark::DoNotOptimize(predict_operator(device, asked).seconds);
  }
}

constexpr auto half = number_format::fp16;
BENCHMARK_CAPTURE(one_operator, product, gemm(4096, 12288, 4096, half));
BENCHMARK_CAPTURE(one_operator, product_fp32, gemm(4096, 12288, 4096, number_format::fp32));
BENCHMARK_CAPTURE(one_operator, split_product, gemm(64, 64, 65536, half));
BENCHMARK_CAPTURE(one_operator, batched_product, batched_gemm(256, 2048, 2048, 64, half));
BENCHMARK_CAPTURE(one_operator, flash, flash_attention(256, 256, 2048, 2048, 64, true, half));
BENCHMARK_CAPTURE(one_operator, softmax, softmax(65536, 2048, half));
BENCHMARK_CAPTURE(one_operator, norm, norm(4096, 12288, half));
BENCHMARK_CAPTURE(one_operator, elementwise, elementwise(1 << 24, 2, 1, half));
BENCHMARK_CAPTURE(one_operator, embedding, embedding(4096, 4096, half));

// A deep GPT of an eager framework: its operators are listed and each predicted, forward and backward; no layer is taken for
// another's like. Items are operators.
void whole_model(benchmark::State& state) {
  const auto device = make_tile_device(catalogue_device("A100-SXM4-40GB"));
  const transformer_operators model(gpt({.layers = 147, .hidden = 1600, .heads = 25}),
                                    {.fusion = elementwise_fusion::none, .library = eager_gpt2()});
  std::int64_t count = 0;
  for (auto _ : state) {
    double seconds = 0;
    for (int i = 0; i < model.chain().size(); ++i) {
      const auto operators = model.operators(i, {.samples = 4});
      for (const auto* list : {&operators.forward, &operators.backward})
        for (const auto& use : *list) seconds += use.times * predict_operator(device, use.op).seconds, ++count;
    }
    benchmark::DoNotOptimize(seconds);
  }
  state.SetItemsProcessed(count);
  state.counters["operators"] = static_cast<double>(count) / static_cast<double>(state.iterations());
}
BENCHMARK(whole_model)->Unit(benchmark::kMillisecond);

// 100 trees grown on so many rows of ten features; every query asks for another row.
void forest_query(benchmark::State& state) {
  constexpr std::size_t features = 10;
  const auto rows = static_cast<std::size_t>(state.range(0));
  random_source random(1);
  std::vector<double> x(rows * features), y(rows);
  for (auto& value : x) value = random.uniform(0, 1);
  for (std::size_t r = 0; r < rows; ++r) y[r] = std::sin(6 * x[r * features]) * x[r * features + 1] + random.uniform(-0.1, 0.1);
  const auto forest = random_forest::train(x, features, y, {.trees = 100, .seed = 1});
  std::size_t row = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(forest.predict({x.data() + row * features, features}));
    row = (row + 1) % rows;
  }
}
BENCHMARK(forest_query)->Arg(100)->Arg(1000)->Arg(10'000)->Arg(40'000)->Arg(160'000)->ArgName("rows");

cluster two_types() {
  return {{{"v100", catalogue_device("V100-SXM2-32GB"), 4, 8, {5e-6, 150e9}, {10e-6, 25e9}},
           {"a100", catalogue_device("A100-SXM4-40GB"), 4, 8, {5e-6, 300e9}, {10e-6, 25e9}}},
          {{0, 1, {50e-6, 625e6}}}};
}

transformer gpt39b() { return gpt({.layers = 48, .hidden = 8192, .heads = 64, .vocab = 51200, .sequence = 1024}); }

void price_operators(benchmark::State& state) {
  const auto hardware = two_types();
  const auto model = gpt39b();
  for (auto _ : state)
    benchmark::DoNotOptimize(make_tile_cost(hardware, model, {.microbatch_size = 8}, {}, granularity::sublayer));
}
BENCHMARK(price_operators)->Unit(benchmark::kMillisecond);

// All layers on one placement, by operators and by formula. Items are layers.
void ask(benchmark::State& state, const auto& model) {
  const placement where{{1, 1, 8}, {2, 1, 4}};
  for (auto _ : state)
    for (int i = 0; i < model.layer_count(); ++i) benchmark::DoNotOptimize(model.layer(i, where));
  state.SetItemsProcessed(state.iterations() * model.layer_count());
}
void ask_by_operators(benchmark::State& state) {
  ask(state, make_tile_cost(two_types(), gpt39b(), {.microbatch_size = 8}, {}, granularity::sublayer));
}
void ask_by_formula(benchmark::State& state) {
  ask(state, analytic_cost_model(two_types(), make_chain(gpt39b(), granularity::sublayer), {.microbatch_size = 8}));
}
BENCHMARK(ask_by_operators);
BENCHMARK(ask_by_formula);

}  // namespace
