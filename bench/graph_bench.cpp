// SPDX-License-Identifier: Apache-2.0
// Speed of operator graphs: a GPT of so many operators traced, and cut into layers; and the search for repeated modules in
// sequences that are harder than any model's. Items are operators.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/model/graph_operators.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/model/trace.hpp>

namespace {

using namespace hetsched;

traced_tensor block(tracer& net, const traced_tensor& x, std::int64_t h, std::int64_t heads) {
  const auto s = x.shape[0], d = h / heads;
  const auto norm = [&](const traced_tensor& y) { return layer_norm(y, net.parameter({h}), net.parameter({h})); };
  const auto dense = [&](const traced_tensor& y, std::int64_t n) {
    return linear(y, net.parameter({y.shape.back(), n}), net.parameter({n}));
  };
  const auto split_heads = [&](const traced_tensor& y) { return transpose(reshape(y, {s, heads, d}), 0, 1); };
  const auto parts = split(dense(norm(x), 3 * h), {h, h, h}, 1);
  const auto scores = softmax(mul(matmul(split_heads(parts[0]), transpose(split_heads(parts[1]))), 0.1));
  const auto mixed = reshape(transpose(matmul(dropout(scores), split_heads(parts[2])), 0, 1), {s, h});
  const auto y = add(x, dropout(dense(mixed, h)));
  return add(y, dropout(dense(gelu(dense(norm(y), 4 * h)), h)));
}

operator_graph gpt_of(int operators) {
  return trace(
      [&](tracer& net, const traced_tensor& ids) {
        auto x = embedding(ids, net.parameter({50257, 1024}));
        for (int i = 0; net.graph().size() < operators; ++i) {
          const auto scope = net.scope("block " + std::to_string(i));
          x = block(net, x, 1024, 16);
        }
        (void)linear(x, net.parameter({1024, 50257}));
      },
      {}, symbolic_shape{1024});
}

int size_of(const benchmark::State& state) { return static_cast<int>(state.range(0)); }

void trace_gpt(benchmark::State& state) {
  std::int64_t operators = 0;
  for (auto _ : state) operators += gpt_of(size_of(state)).size();
  state.SetItemsProcessed(operators);
}

// About 64 layers, or three a block.
template <int PerBlock>
void layers_of_gpt(benchmark::State& state) {
  const auto graph = gpt_of(size_of(state));
  const int layers = PerBlock > 0 ? PerBlock * graph.size() / 29 : 64;
  graph_layers found;
  for (auto _ : state) {
    found = make_layers(graph, {.layers = layers});
    benchmark::DoNotOptimize(found);
  }
  int kinds = 0;
  for (std::size_t i = 0; i < found.kind.size(); ++i) kinds += found.kind[i] == static_cast<int>(i);
  state.SetItemsProcessed(state.iterations() * graph.size());
  state.counters["layers"] = found.chain.size();
  state.counters["kinds"] = kinds;
}

template <class Token>
void modules_of(benchmark::State& state, Token token) {
  operator_sequence sequence;
  const int n = size_of(state);
  for (int i = 0; i < n; ++i) {
    sequence.tokens.push_back(token(i));
    sequence.intensive.push_back(sequence.tokens.back() % 4 == 0);
  }
  sequence.cut_bytes.assign(sequence.tokens.size() + 1, 1);
  std::size_t modules = 0;
  for (auto _ : state) modules = find_repeated_modules(sequence, 3).size();
  state.SetItemsProcessed(state.iterations() * n);
  state.counters["modules"] = static_cast<double>(modules);
}

void modules_in_noise(benchmark::State& state) {
  random_source random(1);
  modules_of(state, [&](int) { return random.integer(0, 15); });
}
void modules_all_equal(benchmark::State& state) {
  modules_of(state, [](int) { return 0; });
}
void modules_all_different(benchmark::State& state) {
  modules_of(state, [](int i) { return i; });
}
void modules_two_halves(benchmark::State& state) {
  modules_of(state, [half = size_of(state) / 2](int i) { return i % half; });
}
void modules_pairs_of_blocks(benchmark::State& state) {
  modules_of(state, [](int i) { return i / 80 * 40 + i % 40; });
}
// The Fibonacci word, which repeats itself at every length.
void modules_fibonacci(benchmark::State& state) {
  std::string word = "a", before = "b";
  while (static_cast<std::int64_t>(word.size()) < state.range(0)) {
    auto next = word + before;
    before = std::exchange(word, std::move(next));
  }
  modules_of(state, [&](int i) { return word[static_cast<std::size_t>(i)] - 'a'; });
}

BENCHMARK(trace_gpt)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(layers_of_gpt<0>)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(layers_of_gpt<3>)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_in_noise)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_all_equal)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_all_different)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_two_halves)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_pairs_of_blocks)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(modules_fibonacci)->Arg(100'000)->Unit(benchmark::kMillisecond);

}  // namespace
