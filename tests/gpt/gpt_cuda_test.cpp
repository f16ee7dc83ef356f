// SPDX-License-Identifier: Apache-2.0
#include <gpt_cuda/timing.hpp>
#include <gpt_cuda/training.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda_check/api.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>
#include <gpt_cuda/shape_of.hpp>

#include "fake_launcher.hpp"

using namespace hetsched;

namespace {

using devices = cuda_devices<cuda_check::api>;
using queue = cuda_queue<cuda_check::api>;
using tensor = gpt_cuda::tensor<cuda_check::api>;
using host_tensor = gpt::tensor<float>;

gpt_cuda::numbers numbers_of(const host_tensor& t) {
  return {t.rows(), t.columns(), std::vector<float>(t.data(), t.data() + t.size())};
}
std::vector<gpt_cuda::numbers> first_weights(const gpt::config& m, int layer) {
  std::vector<gpt_cuda::numbers> found;
  auto made = gpt::make_layer<float>(m, layer);
  for (host_tensor& p : made.parameters()) found.push_back(numbers_of(p));
  return found;
}
host_tensor random_tensor(std::size_t rows, std::size_t columns, random_source& random) {
  host_tensor t(rows, columns);
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<float>(random.uniform(-1, 1));
  return t;
}

/// The largest difference, relative to the largest number.
double difference(const gpt_cuda::numbers& a, const host_tensor& b) {
  REQUIRE(a.rows == b.rows());
  REQUIRE(a.columns == b.columns());
  double most = 0, largest = 1e-6;
  for (std::size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a.values[i]) - static_cast<double>(b.data()[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b.data()[i])));
  }
  return most / largest;
}

std::vector<gpt::config> kinds() {
  const gpt::config small{.layers = 2, .hidden = 24, .heads = 6, .sequence = 7, .vocab = 31};
  auto rotary = small;
  rotary.kv_heads = 2;
  rotary.norm = gpt::norm_kind::rms;
  rotary.activation = gpt::activation_kind::swiglu;
  rotary.positions = gpt::position_kind::rotary;
  rotary.bias = false;
  rotary.tied = false;
  rotary.ffn_hidden = 20;
  auto experts = small;
  experts.experts = 5;
  auto gated = rotary;
  gated.experts = 3;
  gated.moe_every = 2;
  return {small, rotary, experts, gated};
}

/// A layer on a queue against gpt's: outputs, both gradients, and what the two halves of a backward give.
void compare_layer(const gpt::config& m, int layer, const queue& q, bool half, double within) {
  CAPTURE(layer);
  random_source random(7);
  const std::size_t rows = 3 * static_cast<std::size_t>(m.sequence);
  auto host = gpt::make_layer<float>(m, layer);
  for (host_tensor& p : host.parameters())  // no zero biases, no even gains
    for (std::size_t i = 0; i < p.size(); ++i) p.data()[i] += static_cast<float>(random.uniform(-0.2, 0.2));
  std::vector<gpt_cuda::numbers> weights;
  for (host_tensor& p : host.parameters()) weights.push_back(numbers_of(p));
  host_tensor x = random_tensor(rows, layer == 0 ? 1 : static_cast<std::size_t>(m.hidden), random);
  if (layer == 0)
    for (std::size_t i = 0; i < rows; ++i) x.data()[i] = static_cast<float>(i * i % static_cast<std::size_t>(m.vocab));
  auto c = host.make_context();
  const host_tensor y = host.forward(x, c);
  const host_tensor dy = random_tensor(y.rows(), y.columns(), random);
  const host_tensor dx = host.backward(dy, c);

  const auto shape = gpt_cuda::shape_of(m, half);
  for (const bool split : {false, true}) {
    CAPTURE(split);
    auto own = gpt_cuda::operations<cuda_check::api>::make_layer(shape, layer, {.first = weights}, q);
    auto own_context = own.make_context();
    const auto own_x = gpt_cuda::upload(q, numbers_of(x)), own_dy = gpt_cuda::upload(q, numbers_of(dy));
    const auto own_y = own.forward(own_x, own_context, q);
    tensor own_dx;
    if (split) {
      own_dx = own.backward_input(own_dy, own_context, q);
      own.backward_weight(own_dy, own_context, q);
    } else {
      own_dx = own.backward(own_dy, own_context, q);
    }
    CHECK(difference(gpt_cuda::download(q, own_y), y) < within);
    CHECK(difference(gpt_cuda::download(q, own_dx), dx) < within);
    const auto wanted = host.gradients();
    const auto found = own.gradients();
    REQUIRE(found.size() == wanted.size());
    for (std::size_t k = 0; k < found.size(); ++k) {
      CAPTURE(k);
      CHECK(difference(gpt_cuda::download<cuda_check::api>(q, found[k]), wanted[k]) < within);
    }
  }
}

/// A team of several lanes that come to its sums together, as those of a warp do.
struct threads_team {
  int lane = 0, lanes = 1;
  std::barrier<>* meet = nullptr;
  std::vector<float>* told = nullptr;
  [[nodiscard]] float together(float x, const std::function<float(float, float)>& by) const {
    (*told)[static_cast<std::size_t>(lane)] = x;
    meet->arrive_and_wait();
    float all = (*told)[0];
    for (std::size_t l = 1; l < told->size(); ++l) all = by(all, (*told)[l]);
    meet->arrive_and_wait();
    return all;
  }
  [[nodiscard]] float sum(float x) const { return together(x, std::plus<>()); }
  [[nodiscard]] float most(float x) const {
    return together(x, [](float a, float b) { return std::max(a, b); });
  }
};
template <class Body, class... Arguments>
void with_lanes(int lanes, int n, const Body& body, Arguments... a) {
  std::barrier meet(lanes);
  std::vector<float> told(static_cast<std::size_t>(lanes));
  std::vector<std::jthread> threads;
  for (int lane = 0; lane < lanes; ++lane)
    threads.emplace_back([&, lane] {
      for (int i = 0; i < n; ++i) body(threads_team{lane, lanes, &meet, &told}, i, a...);
    });
}

/// Each layer of a model on the host, or on a fake GPU.
void compare_layers(int place, bool half, double within) {
  for (const auto& m : kinds()) {
    cuda_check::machine machine({.devices = 1});
    {
      devices all(cuda_check::api{&machine});
      const cuda_backend<cuda_check::api> own(all, place, "a layer");
      const auto bound = own.bind();
      for (int l = 0; l < gpt::layer_count(m); ++l) compare_layer(m, l, own.compute_queue(), half, within);
    }
    CHECK(machine.reports() == std::vector<std::string>{});
    CHECK(machine.leaks() == std::vector<std::string>{});
  }
}

/// A small training: what gpt's layers give under the trainer on one rank, and what comes of it on GPUs and hosts.
struct small_training {
  gpt::config model = kinds()[0];
  int microbatches = 3, samples = 1;
  std::int64_t steps = 2;
  std::string text = std::string("so it was, and so it is, and so it will be for as long as anyone looks; then it was not");

  gpt::microbatch<float> draw(std::int64_t step, int first, int count) const {
    auto b = gpt::draw<float>(text, model.sequence, {.seed = 3, .step = step, .first_sample = first, .samples = count});
    for (host_tensor* t : {&b.inputs, &b.targets})
      for (std::size_t i = 0; i < t->size(); ++i) t->data()[i] = std::fmod(t->data()[i], static_cast<float>(model.vocab));
    return b;
  }

  std::vector<double> on_host(const gpt::chosen_optimizer& optimizer, double clip) const {
    std::vector<double> losses;
    run_on_threads(thread_communicator<host_tensor>::connect(1), [&](auto& comm) {
      auto trainer = make_trainer<host_tensor>(
          layout_of(1), [&](int l) { return gpt::make_layer<float>(model, l); },
          [&](int l, int n) { return gpt::shape_after(model, l, n); }, comm, optimizer,
          {.clip_norm = clip, .ties = gpt::ties(model)});
      for (std::int64_t step = 0; step < steps; ++step) {
        std::vector<host_tensor> inputs, targets;
        for (int m = 0; m < microbatches; ++m) {
          auto b = draw(step, m * samples, samples);
          inputs.push_back(std::move(b.inputs));
          targets.push_back(std::move(b.targets));
        }
        losses.push_back(trainer
                             .step(std::span<const host_tensor>(inputs), std::span<const host_tensor>(targets),
                                   [](host_tensor y, const host_tensor& t) { return gpt::cross_entropy(std::move(y), t); })
                             .loss);
      }
    });
    return losses;
  }
  [[nodiscard]] training_layout layout_of(int ranks) const {
    std::vector<int> warmups;
    for (int r = 0; r < ranks; ++r) warmups.push_back(ranks - r);
    return even_layout(gpt::layer_count(model), one_f_one_b(warmups, microbatches), samples);
  }
  [[nodiscard]] gpt_cuda::training on_gpus(const std::vector<int>& places, gpt::chosen_optimizer optimizer, double clip,
                                           bool half) const {
    return {.model = gpt_cuda::shape_of(model, half),
            .layout = layout_of(static_cast<int>(places.size())),
            .places = places,
            .first_weights = [this](int l) { return first_weights(model, l); },
            .draw = [this](std::int64_t step, int first, int count) -> gpt_cuda::batch {
              const auto b = draw(step, first, count);
              return {numbers_of(b.inputs), numbers_of(b.targets)};
            },
            .optimizer = optimizer,
            .clip = clip,
            .steps = steps};
  }
};

gpt_cuda::trained run(const gpt_cuda::training& t, const cuda_check::habits& habits) {
  cuda_check::machine machine(habits);
  gpt_cuda::trained found;
  {
    devices all(cuda_check::api{&machine}, {.records = 1024});
    found = gpt_cuda::train(all, t);
  }
  CHECK(machine.reports() == std::vector<std::string>{});
  CHECK(machine.leaks() == std::vector<std::string>{});
  return found;
}

}  // namespace

TEST_CASE("bf16: the nearest, ties to even, as a table of all and their middles") {
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
    const float here = gpt_cuda::to_float(gpt_cuda::bf16{static_cast<std::uint16_t>(upper)});
    const float next = gpt_cuda::to_float(gpt_cuda::bf16{static_cast<std::uint16_t>(upper + 1)});
    if (gpt_cuda::to_bf16(here).bits != upper) FAIL_CHECK("not itself: " << here);
    if (!std::isfinite(next)) continue;
    const float middle = static_cast<float>((static_cast<double>(here) + static_cast<double>(next)) / 2);
    const auto above = std::nextafter(middle, next), below = std::nextafter(middle, here);
    if (gpt_cuda::to_bf16(middle).bits != upper + upper % 2) FAIL_CHECK("a tie: " << middle);
    if (gpt_cuda::to_bf16(above).bits != upper + 1) FAIL_CHECK("above the middle: " << above);
    if (gpt_cuda::to_bf16(-below).bits != (upper | 0x8000)) FAIL_CHECK("below the middle: " << below);
  }
  CHECK(std::isnan(gpt_cuda::to_float(gpt_cuda::to_bf16(NAN))));
  CHECK(std::isinf(gpt_cuda::to_float(gpt_cuda::to_bf16(3.4e38f))));
}

TEST_CASE("the layers for GPUs against those of the host, in floats") { compare_layers(-1, false, 2e-5); }
TEST_CASE("the same on a fake GPU: nothing is read before it is there [threads]") { compare_layers(0, false, 2e-5); }
TEST_CASE("the layers for GPUs with products of bf16 numbers") { compare_layers(-1, true, 0.03); }

TEST_CASE("products with epilogues do what products and kernels do, and kernels do it where there are none") {
  using gpt_cuda::epilogue;
  auto& lt = fake_cublas_lt::known();
  const std::vector<epilogue> all{epilogue::bias,  epilogue::gelu_aux,    epilogue::gelu_aux_bias,
                                  epilogue::dgelu, epilogue::dgelu_bgrad, epilogue::bgrada};
  auto plain = kinds()[0];
  auto odd = plain;  // bf16 rows of 10 and 20 numbers are not aligned to 16 bytes
  odd.hidden = 10;
  odd.heads = 2;
  odd.ffn_hidden = 20;
  auto bare = plain;
  bare.bias = false;
  // The last block's products of one forward and backward: outputs and all gradients.
  const auto run_block = [&](const gpt::config& m, bool half, bool epilogues) {
    cuda_check::machine machine({.seed = 9, .devices = 1});
    std::vector<std::vector<float>> found;
    {
      devices gpus(cuda_check::api{&machine});
      const cuda_backend<cuda_check::api> own(gpus, 0, "a block");
      const auto bound = own.bind();
      const auto q = own.compute_queue();
      random_source random(31);
      auto weights = first_weights(m, 1);
      for (auto& w : weights)
        for (auto& x : w.values) x += static_cast<float>(random.uniform(-0.2, 0.2));
      auto shape = gpt_cuda::shape_of(m, half);
      shape.epilogues = epilogues;
      auto block = gpt_cuda::operations<cuda_check::api>::make_layer(shape, 1, {.first = weights}, q);
      auto context = block.make_context();
      const auto rows = static_cast<std::size_t>(11 * m.sequence), hidden = static_cast<std::size_t>(m.hidden);
      const auto x = gpt_cuda::upload(q, numbers_of(random_tensor(rows, hidden, random)));
      const auto dy = gpt_cuda::upload(q, numbers_of(random_tensor(rows, hidden, random)));
      for (int twice = 0; twice < 2; ++twice) {
        const auto y = block.forward(x, context, q), dx = block.backward(dy, context, q);
        found = {gpt_cuda::download(q, y).values, gpt_cuda::download(q, dx).values};
      }
      for (const tensor& g : block.gradients()) found.push_back(gpt_cuda::download(q, g).values);
    }
    CHECK(machine.reports() == std::vector<std::string>{});
    CHECK(machine.leaks() == std::vector<std::string>{});
    return found;
  };
  const auto apart = [](const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    double worst = 0;
    REQUIRE(a.size() == b.size());
    for (std::size_t k = 0; k < a.size(); ++k) {
      double most = 0, largest = 1e-6;
      REQUIRE(a[k].size() == b[k].size());
      for (std::size_t i = 0; i < a[k].size(); ++i) {
        most = std::max(most, std::abs(static_cast<double>(a[k][i]) - static_cast<double>(b[k][i])));
        largest = std::max(largest, std::abs(static_cast<double>(b[k][i])));
      }
      worst = std::max(worst, most / largest);
    }
    return worst;
  };
  const auto in_thread = [&](const auto& work) { std::jthread(work).join(); };  // whose plans are its own
  struct one_case {
    gpt::config model;
    bool half, is_aligned;
    int each;  ///< products with epilogues of a forward and a backward
  };
  const std::vector<one_case> cases{
      {plain, false, true, 6}, {plain, true, true, 6}, {bare, true, true, 2}, {odd, true, false, 0}};
  for (const auto& c : cases) {
    CAPTURE(c.each);
    CAPTURE(c.half);
    in_thread([&] {
      const double within = c.half ? 2e-2 : 1e-5;
      const auto without = run_block(c.model, c.half, false);
      lt.chosen = lt.done = 0;
      const auto with = run_block(c.model, c.half, true);
      CHECK(lt.done == 2 * c.each);
      CHECK(lt.chosen == c.each);  // once for each shape, not for each product
      CHECK(apart(with, without) < within);
      if (!c.is_aligned) CHECK(with == without);
      if (c.half && c.is_aligned) CHECK(with != without);
    });
    for (const auto lacking : all) {
      lt.lacks = lt.breaks = {};
      (static_cast<int>(lacking) % 2 == 0 ? lt.lacks : lt.breaks) = {lacking};
      in_thread(
          [&] { CHECK(apart(run_block(c.model, c.half, true), run_block(c.model, c.half, false)) < (c.half ? 2e-2 : 1e-5)); });
    }
    lt.lacks = std::set(all.begin(), all.end());
    lt.breaks = {};
    in_thread([&] { CHECK(run_block(c.model, c.half, true) == run_block(c.model, c.half, false)); });
    lt.lacks = {};
  }
  // What the fake refuses, and what is not asked for.
  using products = gpt_cuda::fused_products<fake_cublas_lt, cuda_check::api>;
  alignas(16) static float numbers[64] = {};
  const gpt_cuda::argument<const void> whole{numbers, sizeof numbers};
  gpt_cuda::product_call p{
      .m = 4, .n = 4, .k = 4, .a = whole, .b = whole, .lda = 4, .ldb = 4, .c = {numbers, sizeof numbers}, .ldc = 4};
  p.after = epilogue::bias;
  p.bias = whole;
  CHECK(products::is_aligned(p));
  const auto refused = [&](const auto& change) {
    auto changed = p;
    change(changed);
    cuda_check::machine machine({.devices = 1});
    devices gpus(cuda_check::api{&machine});
    const auto plan = fake_cublas_lt::choose(changed, 1 << 20);
    const auto q = gpus.make_queue(0, "a product");
    return std::pair{!products::is_aligned(changed), fake_cublas_lt::matmul(*plan, changed, nullptr, 0, q) == 7};
  };
  CHECK(refused([](auto& c) { c.a.data = numbers + 1; }) == std::pair{true, true});
  CHECK(refused([](auto& c) { c.bias.data = numbers + 2; }) == std::pair{true, true});
  CHECK(refused([](auto& c) { c.lda = 5; }) == std::pair{true, true});
  CHECK(refused([](auto& c) { c.after = epilogue::gelu_aux, c.kept_aux = {numbers, sizeof numbers}; }) == std::pair{true, true});
  CHECK(refused([](auto& c) { c.bias = {}; }) == std::pair{false, true});
  CHECK(refused([](auto&) {}) == std::pair{false, true});  // without a workspace
}

TEST_CASE("several lanes of a team do what one does [threads]") {
  random_source random(5);
  const auto draw = [&](std::size_t n) {
    std::vector<float> x(n);
    for (auto& v : x) v = static_cast<float>(random.uniform(-1, 1));
    return x;
  };
  const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    CHECK(most < 1e-5);
  };
  // Runs a body once with one lane and once with several, on copies of what it writes.
  const auto compare = [&](int n, const auto& body, std::vector<std::vector<float>> written, const auto& call) {
    auto alone = written, together = written;
    const auto with = [&](auto& outs) { return [&](const auto& team, int i) { call(body, team, i, outs); }; };
    const auto one = with(alone), several = with(together);
    for (int i = 0; i < n; ++i) one(gpt_cuda::one_lane{}, i);
    with_lanes(4, n, several);
    for (std::size_t k = 0; k < written.size(); ++k) close(alone[k], together[k]);
  };
  const int rows = 6, columns = 11;
  const auto cells = static_cast<std::size_t>(rows * columns);
  const auto x = draw(cells), dy = draw(cells), gain = draw(11), bias = draw(11), scale = draw(6);
  const auto mean = draw(6);
  const float* const none = nullptr;
  compare(rows, gpt_cuda::norm_forward{}, {draw(cells), draw(6), draw(6), draw(cells)}, [&](auto& b, auto& t, int i, auto& o) {
    b(t, i, columns, x.data(), dy.data(), bias.data(), gain.data(), bias.data(), o[0].data(), o[1].data(), o[2].data(),
      o[3].data());
  });
  compare(rows, gpt_cuda::norm_forward{}, {draw(6), draw(6), draw(cells)}, [&](auto& b, auto& t, int i, auto& o) {
    b(t, i, columns, x.data(), none, none, gain.data(), none, static_cast<float*>(nullptr), o[0].data(), o[1].data(),
      o[2].data());
  });
  compare(rows, gpt_cuda::norm_backward{}, {draw(cells)}, [&](auto& b, auto& t, int i, auto& o) {
    b(t, i, columns, true, dy.data(), gain.data(), x.data(), mean.data(), scale.data(), x.data(), o[0].data());
  });
  const std::vector<float> targets{0, 3, 10, 5, 5, 1};
  compare(rows, gpt_cuda::cross_entropy_row{}, {draw(cells), draw(6)},
          [&](auto& b, auto& t, int i, auto& o) { b(t, i, columns, 0.25f, targets.data(), o[0].data(), o[1].data()); });
  const gpt_cuda::attention_shape s{.sequence = 3, .heads = 4, .kv_heads = 2, .size = 5};
  const auto qkv = draw(6 * 40), mixed = draw(6 * 20), dmixed = draw(6 * 20), logs = draw(24), along = draw(24);
  compare(24, gpt_cuda::attention_forward{}, {draw(120), draw(24)},
          [&](auto& b, auto& t, int i, auto& o) { b(t, i, s, qkv.data(), o[0].data(), o[1].data()); });
  compare(24, gpt_cuda::attention_queries_backward{}, {draw(24), draw(240)}, [&](auto& b, auto& t, int i, auto& o) {
    b(t, i, s, qkv.data(), mixed.data(), dmixed.data(), logs.data(), o[0].data(), o[1].data());
  });
  compare(12, gpt_cuda::attention_keys_backward{}, {draw(240)}, [&](auto& b, auto& t, int i, auto& o) {
    b(t, i, s, qkv.data(), dmixed.data(), logs.data(), along.data(), o[0].data());
  });
  const std::vector<float> tokens{3, 1, 3, 0, 1, 3};
  auto table = draw(4 * 11);
  auto wanted = table, found = table;
  for (std::size_t i = 0; i < cells; ++i) wanted[static_cast<std::size_t>(tokens[i / 11]) * 11 + i % 11] += dy[i];
  with_lanes(4, rows, gpt_cuda::look_up_backward{}, rows, columns, tokens.data(), dy.data(), found.data());
  close(wanted, found);
}

TEST_CASE("a training on GPUs and hosts has the losses of the trainer on the host [threads]") {
  small_training small;
  const gpt::chosen_optimizer adam{adamw{.learning_rate = 0.02, .weight_decay = 0.1}};
  const gpt::chosen_optimizer descent{sgd{.learning_rate = 0.3, .momentum = 0.5, .weight_decay = 0.01}};
  const gpt::chosen_optimizer plain{sgd{.learning_rate = 0.3}};
  const auto compare = [&](const auto& optimizer, double clip) {
    const auto wanted = small.on_host(optimizer, clip);
    gpt_cuda::trained first;
    for (const auto& places : std::vector<std::vector<int>>{{-1}, {0}, {0, -1, 1}}) {
      CAPTURE(places.size());
      const auto found = run(small.on_gpus(places, optimizer, clip, false), {.seed = 4});
      REQUIRE(found.losses.size() == wanted.size());
      for (std::size_t s = 0; s < wanted.size(); ++s) CHECK(found.losses[s] == doctest::Approx(wanted[s]).epsilon(1e-5));
      if (first.losses.empty()) first = found;
      CHECK(found.losses == first.losses);  // wherever stages are: the same bits
      CHECK(found.norms == first.norms);
      CHECK(found.measured.size() == places.size());
    }
  };
  compare(adam, 0.5);
  compare(plain, 0);
  small.model.tied = false;
  compare(descent, 0);
}

TEST_CASE("stages that are captured train as those that are not, and layers are timed [threads]") {
  const small_training small;
  auto t = small.on_gpus({0, 1, 0}, {adamw{.learning_rate = 0.02}}, 1, true);
  t.steps = 4;
  const auto wanted = run(t, {.seed = 2});
  t.graphs = true;
  const auto found = run(t, {.seed = 3});
  CHECK(found.losses == wanted.losses);
  CHECK(found.losses.size() == 4);
  t.places[1] = -1;
  cuda_check::machine machine({.devices = 2});
  devices all(cuda_check::api{&machine});
  CHECK_THROWS_AS((void)gpt_cuda::train(all, t), error);

  const auto b = small.draw(0, 0, small.samples);
  std::vector<int> told;
  const auto costs =
      gpt_cuda::operations<cuda_check::api>::time_layers(all, 0,
                                                         {.model = gpt_cuda::shape_of(small.model, false),
                                                          .samples = small.samples,
                                                          .first_weights = [&](int l) { return first_weights(small.model, l); },
                                                          .data = {numbers_of(b.inputs), numbers_of(b.targets)},
                                                          .warmup = 1,
                                                          .repeats = 3,
                                                          .before = [&](int l) { told.push_back(l); }});
  CHECK(told == std::vector<int>{0, 1, 3});
  REQUIRE(costs.size() == 4);
  const auto rows = b.inputs.rows(), hidden = static_cast<std::size_t>(small.model.hidden);
  CHECK(costs[0].activation_bytes == static_cast<bytes_t>(4 * rows * hidden));
  CHECK(costs[0].took.output_bytes == static_cast<bytes_t>(4 * rows * hidden));
  CHECK(costs[0].took.parameter_bytes == static_cast<bytes_t>(4 * hidden * (31 + 7)));
  CHECK(costs[1].took == costs[2].took);
  CHECK(costs[1].activation_bytes > 10 * costs[0].activation_bytes);
  CHECK(costs[3].took.output_bytes == static_cast<bytes_t>(4 * rows * 31));
  for (const auto& c : costs) CHECK(c.took.forward.median_s > 0);
  const auto gpu = gpt_cuda::measure_device(all, 1, 8, {.bytes = {64, 4096}, .warmup = 1, .repeats = 3});
  CHECK(gpu.name == "strict device of kind 0");
  CHECK(gpu.memory_bandwidth > 0);
  for (const auto p : {precision::fp32, precision::bf16}) CHECK(gpu.peak_flops[static_cast<std::size_t>(p)] > 0);
  const auto products = gpt_cuda::time_product<float>(all, 1, {.m = 3, .n = 5, .k = 7}, 4);
  REQUIRE(products.size() == 4);
  for (const double s : products) CHECK(s > 0);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("the loss writes the gradient over the logits, and takes one more number for each row") {
  random_source random(12);
  const std::size_t rows = 14, vocab = 31;
  const auto logits = random_tensor(rows, vocab, random);
  host_tensor targets(rows, 1);
  for (std::size_t i = 0; i < rows; ++i) targets.data()[i] = static_cast<float>(i * i % vocab);
  const auto wanted = gpt::cross_entropy(logits, targets);
  cuda_check::machine machine({.seed = 4});
  {
    devices all(cuda_check::api{&machine});
    const cuda_backend<cuda_check::api> own(all, 0, "a loss");
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    auto value = own.make_numbers(1);
    auto here = gpt_cuda::upload(q, numbers_of(logits));
    const auto wanted_tokens = gpt_cuda::upload(q, numbers_of(targets));
    const auto* const at = std::as_const(here).data();
    const auto before = all.memory(0);
    const auto gradient =
        gpt_cuda::operations<cuda_check::api>::cross_entropy_part(std::move(here), wanted_tokens, rows, q, *value.data());
    const auto behind = all.memory(0);
    CHECK(gradient.data() == at);
    CHECK(behind.allocations == before.allocations + 1);
    CHECK(behind.now_bytes == before.now_bytes);
    CHECK(difference(gpt_cuda::download(q, gradient), wanted.gradient) < 1e-5);
    CHECK(*std::as_const(value).begin() == doctest::Approx(wanted.value).epsilon(1e-6));
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("bf16 numbers between layers: the same bits wherever stages are cut, and losses near those of floats [threads]") {
  small_training small;
  small.steps = 3;
  const gpt::chosen_optimizer adam{adamw{.learning_rate = 0.02}};
  const auto wanted = run(small.on_gpus({0}, adam, 1, true), {.seed = 5});
  const auto with = [&](const std::vector<int>& places, bool graphs) {
    auto t = small.on_gpus(places, adam, 1, true);
    t.model.half_boundaries = true;
    t.graphs = graphs;
    return run(t, {.seed = 6});
  };
  const auto alone = with({0}, false);
  REQUIRE(alone.losses.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) CHECK(alone.losses[s] == doctest::Approx(wanted.losses[s]).epsilon(2e-2));
  CHECK(alone.losses != wanted.losses);
  CHECK(with({0, 1, 0}, false).losses == alone.losses);
  CHECK(with({0, 1, 0}, true).losses == alone.losses);
  CHECK(gpt_cuda::shape_after(gpt_cuda::shape_of(small.model, true), 1, 1) == tensor_shape{7, 24});
  auto shape = gpt_cuda::shape_of(small.model, true);
  shape.half_boundaries = true;
  CHECK(gpt_cuda::shape_after(shape, 1, 1) == tensor_shape{7, 12});  // in floats: half the bytes
}

TEST_CASE("several pipelines, data ranks, shared states and recomputation train as one device does [threads]") {
  small_training small;
  small.microbatches = 4;
  small.samples = 2;
  const gpt::chosen_optimizer adam{adamw{.learning_rate = 0.02, .weight_decay = 0.1}};
  const auto wanted = run(small.on_gpus({0}, adam, 0.5, false), {.seed = 5});
  const auto compare = [&](const gpt_cuda::training& t, double within) {
    const auto found = run(t, {.seed = 6, .devices = 4});
    REQUIRE(found.losses.size() == wanted.losses.size());
    for (std::size_t s = 0; s < found.losses.size(); ++s)
      CHECK(found.losses[s] == doctest::Approx(wanted.losses[s]).epsilon(within));
  };
  auto recomputed = small.on_gpus({0, 1}, adam, 0.5, false);
  recomputed.layout.pipelines[0].groups.assign(2, {.recompute = recomputation::full});
  compare(recomputed, 1e-12);
  auto shared = small.on_gpus({0, 1}, adam, 0.5, false);
  shared.layout.pipelines[0].groups = {{.degrees = {.data = 2}, .zero = 2}, {}};
  shared.places = {0, -1, 2};
  compare(shared, 1e-6);
  small.model.sequence = 8;
  const auto longer = run(small.on_gpus({0}, adam, 0.5, false), {.seed = 5});
  auto sliced = small.on_gpus({0, 1}, adam, 0.5, false);
  sliced.layout.pipelines[0].groups = {{.degrees = {.data = 2, .context = 2}}, {.degrees = {.context = 2}}};
  sliced.places = {0, 1, 2, -1, 3, 0};
  const auto in_slices = run(sliced, {.seed = 6, .devices = 4});
  for (std::size_t s = 0; s < longer.losses.size(); ++s)
    CHECK(in_slices.losses[s] == doctest::Approx(longer.losses[s]).epsilon(1e-5));
  small.model.sequence = 7;
  auto two = small.on_gpus({0, 1}, adam, 0.5, false);
  auto& first = two.layout.pipelines[0];
  first.order = one_f_one_b({2, 1}, 3);
  auto other = first;
  other.order = one_f_one_b({1}, 1);
  other.stages = {{.layers = {0, gpt::layer_count(small.model)}}};
  other.first_rank = 2;
  two.layout.pipelines.push_back(other);
  two.places = {0, 1, -1};
  compare(two, 1e-6);
}

TEST_CASE("sums of squares by kernels have the bits of the host's, of any cut, and tell what is not finite") {
  random_source random(11);
  cuda_check::machine machine({.seed = 3});
  {
    devices all(cuda_check::api{&machine});
    const cuda_backend<cuda_check::api> own(all, 0, "squares");
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    auto told = own.make_numbers(hetsched::detail::square_sum::told);
    const auto sum_of = [&](const tensor& t, const strided_runs& r) {
      gpt_cuda::operations<cuda_check::api>::squares(t, r, q, told.data());
      q.finish();
      return hetsched::detail::square_sum::read(
          std::span<const double, hetsched::detail::square_sum::told>(std::as_const(told).begin(), 5));
    };
    for (int instance = 0; instance < 40; ++instance) {
      CAPTURE(instance);
      const auto rows = static_cast<std::size_t>(random.integer(1, 40)),
                 columns = static_cast<std::size_t>(random.integer(1, 900));
      host_tensor host(rows, columns);
      for (std::size_t i = 0; i < host.size(); ++i)
        host.data()[i] = static_cast<float>(std::ldexp(random.uniform(-1, 1), random.integer(-90, instance % 3 == 0 ? 0 : 60)));
      const auto here = gpt_cuda::upload(q, numbers_of(host));
      const auto all_of = strided_runs{.length = static_cast<std::int64_t>(host.size())};
      hetsched::detail::square_sum wanted;
      hetsched::detail::add_squares_here(wanted, host, all_of);
      CHECK(sum_of(here, all_of).value() == wanted.value());
      const auto cut = random.integer(0, static_cast<int>(columns));
      hetsched::detail::square_sum parts;
      const auto n = static_cast<std::int64_t>(columns), m = static_cast<std::int64_t>(rows);
      if (cut > 0) parts.add(sum_of(here, {.length = cut, .rows = m, .stride_a = n}));
      if (cut < n) parts.add(sum_of(here, {.first_a = cut, .length = n - cut, .rows = m, .stride_a = n}));
      CHECK(parts.value() == wanted.value());
      const float bad = instance % 2 == 0 ? INFINITY : NAN;
      host.data()[host.size() / 2] = bad;
      CHECK(!std::isfinite(sum_of(gpt_cuda::upload(q, numbers_of(host)), all_of).value()));
    }
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("one kernel updates many parameters: the bits of the library's optimizers, and what products take of them") {
  random_source random(23);
  std::vector<int> sizes{1, 1023, 1024, 1025, 0, 5000};
  while (sizes.size() < 90) sizes.push_back(random.integer(1, 300));
  const gpt::chosen_optimizer adam{adamw{.learning_rate = 0.02, .weight_decay = 0.1}};
  const gpt::chosen_optimizer heavy{sgd{.learning_rate = 0.3, .momentum = 0.5, .nesterov = true, .weight_decay = 0.01}};
  const gpt::chosen_optimizer plain{sgd{.learning_rate = 0.3}};
  for (const auto& chosen : {adam, heavy, plain})
    for (const int place : {-1, 0}) {
      CAPTURE(chosen.name());
      CAPTURE(place);
      cuda_check::machine machine({.seed = 3, .devices = 1});
      {
        devices all(cuda_check::api{&machine});
        const cuda_backend<cuda_check::api> own(all, place, "updates");
        const auto bound = own.bind();
        const auto q = own.compute_queue();
        std::vector<host_tensor> values, gradients;
        std::vector<std::vector<host_tensor>> states;
        std::vector<gpt_cuda::parameter<cuda_check::api>> here;
        std::vector<std::vector<tensor>> here_states;
        std::vector<parameter_update<tensor>> updates;
        here.reserve(sizes.size());
        for (std::size_t k = 0; k < sizes.size(); ++k) {
          const auto n = static_cast<std::size_t>(sizes[k]);
          values.push_back(random_tensor(1, n, random));
          gradients.push_back(random_tensor(1, n, random));
          here.emplace_back(q, numbers_of(values.back()), k % 3 != 0);
          here.back().gradient = gpt_cuda::upload(q, numbers_of(gradients.back()));
          states.emplace_back();
          here_states.emplace_back();
          for (std::size_t i = 0; i < chosen.state_names().size(); ++i) {
            states.back().push_back(random_tensor(1, n, random));
            for (std::size_t j = 0; j < n; ++j) states.back().back().data()[j] = std::abs(states.back().back().data()[j]);
            here_states.back().push_back(gpt_cuda::upload(q, numbers_of(states.back().back())));
          }
        }
        for (std::size_t k = 0; k < sizes.size(); ++k)  // the last are younger
          updates.push_back({&here[k].value, &here[k].gradient, here_states[k], {}, k < 85 ? 7 : 2});
        const auto before = machine.calls("cudaLaunchKernel");
        gpt_cuda::optimizer<cuda_check::api>{chosen}.update_all(updates, q);
        const auto launches = machine.calls("cudaLaunchKernel") - before;
        for (auto& p : here) p.refresh(q);
        if (place == 0) {
          CHECK(launches == 3);  // 80 as arguments hold, those that are left, the younger ones
          CHECK(machine.calls("cudaLaunchKernel") - before == 3);
        }
        for (std::size_t k = 0; k < sizes.size(); ++k) {
          CAPTURE(k);
          auto by = chosen;
          by.update(values[k], gradients[k], std::span(states[k]), {}, k < 85 ? 7 : 2);
          CHECK(gpt_cuda::download(q, here[k].value).values == numbers_of(values[k]).values);
          for (std::size_t i = 0; i < states[k].size(); ++i)
            CHECK(gpt_cuda::download(q, here_states[k][i]).values == numbers_of(states[k][i]).values);
          if (!here[k].rounded) continue;
          tensor wide(1, values[k].size(), q);
          gpt_cuda::each(q, wide.size(), gpt_cuda::widen{}, gpt_cuda::in(here[k].rounded->half), gpt_cuda::out(wide));
          auto wanted = numbers_of(values[k]).values;
          for (auto& x : wanted) x = gpt_cuda::to_float(gpt_cuda::to_bf16(x));
          CHECK(gpt_cuda::download(q, wide).values == wanted);
        }
        // Layers round what anyone else has changed, also behind an update that they were not told of.
        const auto products_take_the_value = [&](const gpt_cuda::parameter<cuda_check::api>& p) {
          tensor wide(1, static_cast<std::size_t>(p.value.size()), q);
          gpt_cuda::each(q, wide.size(), gpt_cuda::widen{}, gpt_cuda::in(p.rounded->half), gpt_cuda::out(wide));
          auto wanted = gpt_cuda::download(q, p.value).values;
          for (auto& x : wanted) x = gpt_cuda::to_float(gpt_cuda::to_bf16(x));
          return gpt_cuda::download(q, wide).values == wanted;
        };
        for (const bool updates_first : {false, true}) {
          CAPTURE(updates_first);
          if (updates_first) gpt_cuda::optimizer<cuda_check::api>{chosen}.update_all(updates, q);
          gpt_cuda::operations<cuda_check::api>::scale(here[1].value, 2, q);
          here[1].refresh(q);
          CHECK(products_take_the_value(here[1]));
        }
      }
      CHECK(machine.reports() == std::vector<std::string>{});
      CHECK(machine.leaks() == std::vector<std::string>{});
    }
}
