// SPDX-License-Identifier: Apache-2.0
// The GPT of the examples on a GPU against the same on the host, whose kernels tests/gpt/gpt_cuda_test.cpp compares with those of
// gpt/: what is left to see is that launches and cuBLAS do the same.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/runtime.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include <gpt_cuda/cuda_launcher.cuh>
#include <gpt_cuda/layers.hpp>
#include <gpt_cuda/timing.hpp>
#include <gpt_cuda/training.hpp>

#include "rows.hpp"

// Without it nvcc (13.0) leaves the kernels of flash.cuh out, whose launches then fail.
template struct gpt_cuda::operations<hetsched::cuda_runtime>;

namespace {

using rows::number;
using rows::row;

gpt_cuda::numbers random_numbers(hetsched::random_source& random, int rows, int columns, double deviation) {
  gpt_cuda::numbers n{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), {}};
  for (int i = 0; i < rows * columns; ++i) n.values.push_back(static_cast<float>(random.uniform(-1.7, 1.7) * deviation));
  return n;
}
gpt_cuda::numbers even(int columns, float value) {
  return {1, static_cast<std::size_t>(columns), std::vector<float>(static_cast<std::size_t>(columns), value)};
}

std::vector<gpt_cuda::numbers> first_weights(const gpt_cuda::shape& m, int layer) {
  hetsched::random_source random(static_cast<std::uint64_t>(m.tied && layer == m.layer_count() - 1 ? 0 : layer) + 1);
  const int h = m.hidden, kv = m.kv_heads * (h / m.heads);
  const double by = 1 / std::sqrt(static_cast<double>(h));
  const auto table = random_numbers(random, m.vocab, h, 0.5 * by);
  if (layer == 0) return {table, random_numbers(random, m.sequence, h, 0.02)};
  if (layer == m.layer_count() - 1) return {table, even(h, 1), even(h, 0)};
  if (m.has_experts(layer - 1)) {
    const int e = m.experts;
    auto block = first_weights(
        [&] {
          auto dense = m;
          dense.experts = 0;
          return dense;
        }(),
        layer);
    block.resize(8);  // up to the second norm
    block.push_back(random_numbers(random, h, e, by));
    block.push_back(random_numbers(random, e * h, m.ffn, by));
    block.push_back({static_cast<std::size_t>(e), static_cast<std::size_t>(m.ffn), even(e * m.ffn, 0).values});
    block.push_back(random_numbers(random, e * h, m.ffn, 0.3 / std::sqrt(static_cast<double>(m.ffn))));
    block.push_back({static_cast<std::size_t>(e), static_cast<std::size_t>(h), even(e * h, 0).values});
    return block;
  }
  return {even(h, 1),
          even(h, 0),
          random_numbers(random, h, h + 2 * kv, by),
          even(h + 2 * kv, 0),
          random_numbers(random, h, h, 0.3 * by),
          even(h, 0),
          even(h, 1),
          even(h, 0),
          random_numbers(random, h, m.ffn, by),
          even(m.ffn, 0),
          random_numbers(random, m.ffn, h, 0.3 / std::sqrt(static_cast<double>(m.ffn))),
          even(h, 0)};
}

gpt_cuda::training training_on(std::vector<int> places, bool half) {
  gpt_cuda::training t;
  t.model = {.layers = 4, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn = 256, .sequence = 64, .vocab = 96, .half = half};
  std::vector<int> warmups;
  const int ranks = static_cast<int>(places.size());
  for (int r = 0; r < ranks; ++r) warmups.push_back(ranks - r);
  t.layout = hetsched::even_layout(t.model.layer_count(), hetsched::one_f_one_b(warmups, 4), 2);
  t.places = std::move(places);
  t.first_weights = [m = t.model](int layer) { return first_weights(m, layer); };
  t.draw = [m = t.model](std::int64_t step, int first, int samples) {
    hetsched::random_source random(static_cast<std::uint64_t>(100 * step + first) + 7);
    const auto rows = static_cast<std::size_t>(samples * m.sequence);
    gpt_cuda::batch b{{rows, 1, {}}, {rows, 1, {}}};
    for (int i = 0; i < samples * m.sequence; ++i) {  // the next is a function of the last one: something to learn
      const int token = random.integer(0, m.vocab - 1);
      b.inputs.values.push_back(static_cast<float>(token));
      b.targets.values.push_back(static_cast<float>((7 * token + 3) % m.vocab));
    }
    return b;
  };
  t.optimizer = {hetsched::adamw{.learning_rate = 3e-3}};
  t.clip = 1;
  t.steps = 30;
  return t;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}
using devices = hetsched::cuda_devices<hetsched::cuda_runtime>;

std::vector<double> losses(devices& gpus, std::vector<int> places, bool half, bool graphs = false) {
  auto t = training_on(std::move(places), half);
  t.graphs = graphs;
  return gpt_cuda::train(gpus, t).losses;
}

void against_host(devices& gpus) {
  const auto host = losses(gpus, {-1}, false), host_half = losses(gpus, {-1}, true);
  const auto gpu = losses(gpus, {0}, false), gpu_half = losses(gpus, {0}, true);
  row("GPT, products of floats, against the host", farthest(gpu, host) < 1e-3,
      number("losses differ by %.1e at most", farthest(gpu, host)));
  row("GPT, products of bf16, against the host", farthest(gpu_half, host_half) < 2e-2,
      number("losses differ by %.1e at most", farthest(gpu_half, host_half)));
  row("GPT, bf16 against floats", farthest(gpu_half, gpu) < 5e-2,
      number("losses differ by %.1e at most", farthest(gpu_half, gpu)));
  auto experts = training_on({0}, false), experts_on_host = training_on({-1}, false);
  experts.model.experts = experts_on_host.model.experts = 4;
  experts.first_weights = experts_on_host.first_weights = [m = experts.model](int layer) { return first_weights(m, layer); };
  const auto found = gpt_cuda::train(gpus, experts).losses, wanted = gpt_cuda::train(gpus, experts_on_host).losses;
  row("GPT with experts against the host", farthest(found, wanted) < 2e-2,
      number("losses differ by %.1e at most", farthest(found, wanted)));
  row("GPT learns", gpu_half.back() < 0.7 * gpu_half.front(),
      number("loss %.3f", gpu_half.front()) + number(" to %.3f", gpu_half.back()));
}

void pipelines(devices& gpus) {
  const int last = gpus.count() - 1;
  const auto alone = losses(gpus, {0}, false), half = losses(gpus, {0}, true);
  row("GPT, three stages against one", losses(gpus, {0, last, 0}, true) == half, "bits of losses");
  row("GPT, CUDA graphs against none", losses(gpus, {0, last, 0}, true, true) == half, "bits of losses");
  auto two = training_on({0, last}, false);
  two.places.push_back(0);
  auto other = hetsched::even_layout(two.model.layer_count(), hetsched::one_f_one_b({1}, 1), 2).pipelines[0];
  two.layout.pipelines[0].order = hetsched::one_f_one_b({2, 1}, 3);
  other.first_rank = 2;
  two.layout.pipelines.push_back(other);
  row("GPT, two pipelines against one", farthest(gpt_cuda::train(gpus, two).losses, alone) < 1e-3, "losses");
  auto shared = training_on({0, last}, false);
  shared.places.push_back(last);
  shared.layout.pipelines[0].groups = {{.degrees = {.data = 2}, .zero = 2}, {}};
  row("GPT, data ranks with shared state", farthest(gpt_cuda::train(gpus, shared).losses, alone) < 1e-3, "against one stage");
  auto sliced = training_on({0, last}, false);
  sliced.places.push_back(last);
  sliced.layout.pipelines[0].groups = {{.degrees = {.context = 2}}, {}};
  row("GPT, context ranks against one", farthest(gpt_cuda::train(gpus, sliced).losses, alone) < 1e-3, "losses");
  auto rounded = training_on({0}, true), rounded_stages = training_on({0, last, 0}, true);
  rounded.model.half_boundaries = rounded_stages.model.half_boundaries = true;
  const auto rounded_losses = gpt_cuda::train(gpus, rounded).losses;
  row("GPT, bf16 between layers, three stages against one", gpt_cuda::train(gpus, rounded_stages).losses == rounded_losses,
      "bits of losses");
  row("GPT, bf16 between layers against floats", farthest(rounded_losses, half) < 5e-2,
      number("losses differ by %.1e at most", farthest(rounded_losses, half)));
  row("GPT, stages on GPU and host", farthest(losses(gpus, {0, -1, last}, false), losses(gpus, {-1}, false)) < 1e-3,
      "against the host");
}

/// Attention's kernels, for heads of every width that has its own and one that has none, against the loops of the host: rows of
/// samples that fill no tile, and heads that share keys; a slice of each sample, too, whose keys lie by themselves.
template <class Real>
void attention_of(devices& gpus, const gpt_cuda::attention_shape& s, double within) {
  using api = hetsched::cuda_runtime;
  const int samples = 2, all = samples * s.sequence, all_keys = samples * s.key_rows();
  hetsched::random_source random(static_cast<std::uint64_t>(s.size));
  const auto qkv = random_numbers(random, all, s.columns(), 1), slopes = random_numbers(random, all, s.heads * s.size, 1),
             kv = random_numbers(random, all_keys, s.key_columns(), 1);
  const auto run = [&](int place) {
    hetsched::cuda_backend<api> own(gpus, place, "attention");
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto put = [&](const gpt_cuda::numbers& from) {
      const auto wide = gpt_cuda::upload(q, from);
      gpt_cuda::matrix<api, Real> made(from.rows, from.columns, q);
      if constexpr (std::is_same_v<Real, float>)
        gpt_cuda::each(q, made.size(), gpt_cuda::copy_numbers{}, gpt_cuda::in(wide), gpt_cuda::out(made));
      else
        gpt_cuda::each(q, made.size(), gpt_cuda::round_to_bf16{}, gpt_cuda::in(wide), gpt_cuda::out(made));
      return made;
    };
    const auto get = [&](const gpt_cuda::matrix<api, Real>& from) {
      gpt_cuda::tensor<api> wide(from.shape()[0], from.shape()[1], q);
      gpt_cuda::each(q, wide.size(), gpt_cuda::widen{}, gpt_cuda::in(from), gpt_cuda::out(wide));
      return gpt_cuda::download(q, wide).values;
    };
    const auto here = put(qkv), dmixed = put(slopes);
    auto mixed = put(slopes), dqkv = put(qkv);
    gpt_cuda::tensor<api> logs(static_cast<std::size_t>(all), static_cast<std::size_t>(s.heads), q),
        along(logs.shape()[0], logs.shape()[1], q);
    using gpt_cuda::in, gpt_cuda::out, gpt_cuda::teams;
    if (s.keys > 0) {
      const auto keys = put(kv);
      gpt_cuda::tensor<api> dkeys(keys.shape()[0], keys.shape()[1], q);
      teams(q, all * s.heads, gpt_cuda::attention_forward{}, s, in(here), in(keys), out(mixed), out(logs));
      teams(q, all * s.heads, gpt_cuda::attention_queries_backward{}, s, in(here), in(keys), in(mixed), in(dmixed), in(logs),
            out(along), out(dqkv));
      teams(q, all_keys * s.kv_heads, gpt_cuda::attention_keys_backward{}, s, in(here), in(keys), in(dmixed), in(logs), in(along),
            out(dkeys));
      auto gradient = get(dqkv);
      const auto of_keys = gpt_cuda::download(q, dkeys).values;
      gradient.insert(gradient.end(), of_keys.begin(), of_keys.end());
      return std::pair{get(mixed), gradient};
    }
    teams(q, all * s.heads, gpt_cuda::attention_forward{}, s, in(here), out(mixed), out(logs));
    teams(q, all * s.heads, gpt_cuda::attention_queries_backward{}, s, in(here), in(mixed), in(dmixed), in(logs), out(along),
          out(dqkv));
    teams(q, all * s.kv_heads, gpt_cuda::attention_keys_backward{}, s, in(here), in(dmixed), in(logs), in(along), out(dqkv));
    return std::pair{get(mixed), get(dqkv)};
  };
  const auto gpu = run(0), again = run(0), host = run(-1);
  const auto apart = [](const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0, largest = 1e-9;
    for (std::size_t i = 0; i < b.size(); ++i) {
      most = std::max(most, std::isfinite(a[i]) ? std::abs(static_cast<double>(a[i]) - b[i]) : 1e9);
      largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    }
    return most / largest;
  };
  const double forward = apart(gpu.first, host.first), backward = apart(gpu.second, host.second);
  row("attention" + std::string(s.keys > 0 ? " of a slice" : "") + ", heads of " + std::to_string(s.size) +
          (std::is_same_v<Real, float> ? ", floats" : ", bf16"),
      forward < within && backward < within && gpu == again,
      number("forward differs by %.1e,", forward) + number(" backward by %.1e", backward));
}
void attention(devices& gpus) {
  for (const int size : {16, 24, 32, 64, 128}) {
    const gpt_cuda::attention_shape whole{.sequence = 150, .heads = 4, .kv_heads = 2, .size = size};
    auto slice = whole;
    slice.sequence = 50;
    slice.keys = 150;
    slice.first_position = 50;
    for (const auto& s : {whole, slice}) {
      attention_of<float>(gpus, s, 1e-5);
      attention_of<gpt_cuda::bf16>(gpus, s, 2e-2);
    }
  }
}

/// Products with epilogues, and the kernel of all updates.
void fused(devices& gpus) {
  for (const bool half : {false, true}) {
    auto t = training_on({0}, half);
    const auto products_of = [&](std::vector<double>& losses) {
      auto& all = gpt_cuda::launcher<hetsched::cuda_runtime>::multiplied_with;
      const auto before = all.load();
      losses = gpt_cuda::train(gpus, t).losses;
      return all.load() - before;
    };
    std::vector<double> with, without;
    const auto products = products_of(with);
    t.model.epilogues = false;
    const auto others = products_of(without);
    // Of bf16 numbers cuBLASLt has them; of floats it may have none.
    const bool there = (products > 0 || !half) && others == 0;
    row(std::string("GPT, epilogues against kernels, ") + (half ? "bf16" : "floats"),
        there && farthest(with, without) < (half ? 2e-2 : 1e-3),
        number("losses differ by %.1e at most, ", farthest(with, without)) + std::to_string(products) + " products with them");
  }
  using api = hetsched::cuda_runtime;
  using tensor = gpt_cuda::tensor<api>;
  hetsched::random_source random(3);
  hetsched::cuda_backend<api> own(gpus, 0, "updates");
  const auto bound = own.bind();
  const auto q = own.compute_queue();
  const hetsched::adamw adam{.learning_rate = 1e-3, .weight_decay = 0.1};
  struct one {
    gpt_cuda::numbers value, gradient;
    gpt_cuda::parameter<api> here;
    std::vector<tensor> state;
  };
  std::vector<one> all;
  all.reserve(148);
  for (int k = 0; k < 148; ++k) {  // as many tensors as GPT-2 of 124 million parameters has, of sizes that fill no piece
    const int columns = k % 12 == 0 ? 768 * 3072 : k % 3 == 0 ? 768 * 768 : 769 + k;
    const auto value = random_numbers(random, 1, columns, 1), gradient = random_numbers(random, 1, columns, 1);
    all.push_back({value, gradient, {q, value, k % 2 == 0}, {}});
    all.back().here.gradient = gpt_cuda::upload(q, gradient);
    for (int i = 0; i < 2; ++i) all.back().state.push_back(gpt_cuda::upload(q, even(columns, 0)));
  }
  std::vector<hetsched::parameter_update<tensor>> updates;
  for (auto& p : all) updates.push_back({&p.here.value, &p.here.gradient, p.state, {}, 1});
  const auto update = [&] { gpt_cuda::operations<api>::update(adam, updates, q); };
  update();
  std::size_t wrong = 0, numbers = 0;
  const gpt_cuda::adamw_update body{0.9f,
                                    static_cast<float>(1 - 0.9),
                                    0.999f,
                                    static_cast<float>(1 - 0.999),
                                    static_cast<float>(1 - 1e-4),
                                    static_cast<float>(1e-3 / (1 - 0.9)),
                                    static_cast<float>(1 / std::sqrt(1 - 0.999)),
                                    1e-8f};
  for (auto& p : all) {
    const auto found = gpt_cuda::download(q, p.here.value);
    auto wanted = p.value.values;
    std::vector<float> m(wanted.size()), v(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      body(static_cast<int>(i), p.gradient.values.data(), m.data(), v.data(), wanted.data());
      wrong += wanted[i] != found.values[i];
    }
    numbers += wanted.size();
  }
  row("updates of 148 tensors against the host", wrong == 0,
      std::to_string(wrong) + " of " + std::to_string(numbers) + " differ");
  constexpr std::size_t runs = 12;
  auto clock = own.make_clock(std::vector<std::string>(runs, "updates"));
  for (std::size_t run = 0; run < runs; ++run) clock.time(run, update);
  q.finish();
  clock.read();
  double best = 1e9;
  for (std::size_t run = 2; run < runs; ++run) best = std::min(best, clock.end_s(run) - clock.start_s(run));
  row("the same, time", true, number("%.3f ms,", 1e3 * best) + number(" %.0f GB/s", 29e-9 * static_cast<double>(numbers) / best));
}

void time_block(devices& gpus, int hidden, int heads, int samples, int sequence, bool half, bool epilogues = true) {
  auto t = training_on({0}, half);
  t.model.epilogues = epilogues;
  t.model.hidden = hidden;
  t.model.heads = t.model.kv_heads = heads;
  t.model.ffn = 4 * hidden;
  t.model.sequence = sequence;
  t.first_weights = [m = t.model](int layer) { return first_weights(m, layer); };
  hetsched::random_source random(5);
  const auto tokens = static_cast<std::size_t>(samples * sequence);
  gpt_cuda::batch data{{tokens, 1, {}}, {tokens, 1, {}}};
  for (std::size_t i = 0; i < tokens; ++i) {
    data.inputs.values.push_back(static_cast<float>(random.integer(0, t.model.vocab - 1)));
    data.targets.values.push_back(static_cast<float>(random.integer(0, t.model.vocab - 1)));
  }
  const auto costs = gpt_cuda::operations<hetsched::cuda_runtime>::time_layers(
      gpus, 0, {.model = t.model, .samples = samples, .first_weights = t.first_weights, .data = data});
  row("a block, " + std::to_string(hidden) + " wide, " + std::to_string(samples) + " x " + std::to_string(sequence) +
          " tokens, " + (half ? "bf16" : "floats") + (epilogues ? "" : ", no epilogues"),
      costs[1].took.forward.median_s > 0,
      number("forward %.3f ms,", 1e3 * costs[1].took.forward.median_s) +
          number(" backward %.3f ms", 1e3 * costs[1].took.backward.median_s));
}

/// Steps of a model of GPT-2's size with 124 million parameters.
void time_steps(devices& gpus) {
  auto t = training_on({0}, true);
  t.model = {.layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .ffn = 3072, .sequence = 1024, .vocab = 50304};
  constexpr int samples = 8;
  t.layout = hetsched::even_layout(t.model.layer_count(), hetsched::one_f_one_b({1}, 1), samples);
  t.first_weights = [m = t.model](int layer) { return first_weights(m, layer); };
  std::vector<std::chrono::steady_clock::time_point> begun;
  t.draw = [&, m = t.model](std::int64_t, int, int count) {
    begun.push_back(std::chrono::steady_clock::now());  // a step before has told its loss
    hetsched::random_source random(3);
    const auto tokens = static_cast<std::size_t>(count * m.sequence);
    gpt_cuda::batch b{{tokens, 1, {}}, {tokens, 1, {}}};
    for (std::size_t i = 0; i < tokens; ++i) {
      b.inputs.values.push_back(static_cast<float>(random.integer(0, m.vocab - 1)));
      b.targets.values.push_back(static_cast<float>(random.integer(0, m.vocab - 1)));
    }
    return b;
  };
  t.steps = 13;
  const auto told = gpt_cuda::train(gpus, t);
  const double took = std::chrono::duration<double>(begun.back() - begun[2]).count() / static_cast<double>(begun.size() - 3);
  row("GPT of 124 million parameters, 8 x 1024 tokens",
      std::isfinite(told.losses.back()) && told.losses.back() < told.losses.front(),
      number("%.1f ms a step,", 1e3 * took) + number(" %.0f tokens/s,", samples * 1024 / took) +
          number(" loss %.3f", told.losses.front()) + number(" to %.3f", told.losses.back()));
}

void times(devices& gpus) {
  for (const bool half : {true, false}) {
    time_block(gpus, 64, 4, 2, 64, half);
    time_block(gpus, 1024, 16, 2, 1024, half);
    time_block(gpus, 2048, 16, 1, 4096, half);
    time_block(gpus, 1024, 16, 2, 1024, half, false);
  }
  time_steps(gpus);
  const auto measured = gpt_cuda::measure_device(gpus, 0, 4096);
  row("products of bf16, 4096 rows", true,
      number("%.1f TFLOP/s", 1e-12 * measured.peak_flops[static_cast<std::size_t>(hetsched::precision::bf16)]));
  row("products of fp32, 4096 rows", true,
      number("%.1f TFLOP/s", 1e-12 * measured.peak_flops[static_cast<std::size_t>(hetsched::precision::fp32)]));
  row("copies within the GPU", true, number("%.0f GB/s", 1e-9 * measured.memory_bandwidth));
}

}  // namespace

int main(int argc, char** argv) {
  const auto on_gpus = [](void (*run)(devices&)) {
    return [run] {
      devices gpus;
      run(gpus);
    };
  };
  return rows::main(argc, argv,
                    {{"attention", on_gpus(attention)},
                     {"against_host", on_gpus(against_host)},
                     {"fused", on_gpus(fused)},
                     {"pipelines", on_gpus(pipelines)},
                     {"times", on_gpus(times)}});
}
