// SPDX-License-Identifier: Apache-2.0
#include <gpt/batch.hpp>
#include <gpt/generate.hpp>
#include <gpt/model.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/layer/layer_stack.hpp>

#include "../sanitizer_share.hpp"
#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::atomic<long> tensors_allocated{0};

}  // namespace

// Compiled by itself. Only tensors ask for aligned memory in this program. Not inlined, or g++ takes them for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++tensors_allocated;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (bytes / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

template <class Real>
using network = layer_list<gpt::tensor<Real>, any_layer<gpt::tensor<Real>>>;

template <class Real>
network<Real> make_network(const gpt::config& m) {
  std::vector<any_layer<gpt::tensor<Real>>> layers;
  for (int l = 0; l < gpt::layer_count(m); ++l) layers.push_back(gpt::make_layer<Real>(m, l));
  return network<Real>(std::move(layers));
}

/// Gradient descent; the loss of each step before its update.
template <class Real>
std::vector<double> train(const gpt::config& m, network<Real>& net, const std::string& text, int steps, int samples, Real rate) {
  auto context = net.make_context();
  const auto parameters = net.parameters(), gradients = net.gradients();
  // The head's table: its norm's parameters come after it.
  const std::size_t head = parameters.size() - (m.norm == gpt::norm_kind::layer ? 3 : 2);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto batch = gpt::draw<Real>(text, m.sequence, {.seed = m.seed, .step = step, .samples = samples});
    for (gpt::tensor<Real>& g : gradients) gpt::map(g).setZero();
    const auto loss = gpt::cross_entropy<Real>(net.forward(batch.inputs, context), batch.targets);
    losses.push_back(loss.value);
    (void)net.backward(loss.gradient, context);
    if (m.tied) {
      gpt::map(gradients[0].get()) += gpt::map(gradients[head].get());
      gradients[head].get() = gradients[0].get();
    }
    for (std::size_t n = 0; n < parameters.size(); ++n) gpt::map(parameters[n].get()) -= rate * gpt::map(gradients[n].get());
  }
  if (m.tied) CHECK(parameters[0].get() == parameters[head].get());
  return losses;
}

std::string example_text() {
  std::ifstream file(std::string(HETSCHED_SOURCE_DIR) + "/examples/gpt/alice.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("gradient descent on one device learns the text, with the same bits each time") {
  const auto text = example_text();
  const int steps = 300 / sanitizer_share;
  const gpt::config gpt_like{.layers = 2, .hidden = 32, .heads = 4, .sequence = 32};
  const gpt::config llama_like{.layers = 2,
                               .hidden = 32,
                               .heads = 4,
                               .kv_heads = 2,
                               .ffn_hidden = 96,
                               .sequence = 32,
                               .norm = gpt::norm_kind::rms,
                               .activation = gpt::activation_kind::swiglu,
                               .positions = gpt::position_kind::rotary,
                               .bias = false,
                               .tied = false};
  for (const auto& m : {gpt_like, llama_like}) {
    CAPTURE(m);
    auto net = make_network<float>(m), twin = make_network<float>(m);
    const auto losses = train<float>(m, net, text, steps, 4, 0.3f);
    CHECK(losses.front() == doctest::Approx(std::log(256)).epsilon(0.04));
    // The letters' frequencies alone give 3.1.
    const double end = std::accumulate(losses.end() - 20, losses.end(), 0.0) / 20;
    CHECK(end < (sanitizer_share == 1 ? 2.9 : 3.6));
    CHECK(train<float>(m, twin, text, steps, 4, 0.3f) == losses);
  }
}

TEST_CASE("a model that has learnt a short text says it") {
  const std::string text = "one two three four five six seven eight nine ten. ";
  const gpt::config m{
      .layers = 1, .hidden = 32, .heads = 2, .sequence = 16, .positions = gpt::position_kind::rotary, .tied = false};
  auto net = make_network<float>(m);
  if (sanitizer_share == 1) {
    const auto losses = train<float>(m, net, text + text, 500, 4, 0.1f);
    CHECK(losses.back() < 0.4);
    CHECK(gpt::generate<float>(m, net, "one two th", {.bytes = 40, .temperature = 0}) == text);
  }
  const auto some = gpt::generate<float>(m, net, "o", {.bytes = 30, .temperature = 1, .seed = 2});
  CHECK(some.size() == 31);
  CHECK(some == gpt::generate<float>(m, net, "o", {.bytes = 30, .temperature = 1, .seed = 2}));
  CHECK(some != gpt::generate<float>(m, net, "o", {.bytes = 30, .temperature = 1, .seed = 3}));
  CHECK_THROWS_AS((void)gpt::generate<float>(m, net, ""), input_error);
}

TEST_CASE("layers allocate no tensors but once per context") {
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    random_source random(1);
    gpt::block<float> block(m, random);
    gpt::head<float> head(m, random);
    gpt::embedding<float> embedding(m, random);
    gpt::block<float>::context a;
    gpt::head<float>::context b;
    gpt::embedding<float>::context c;
    const auto tokens = random_tokens<float>(random, 2 * m.sequence, m.vocab);
    const auto few = random_tokens<float>(random, m.sequence, m.vocab);
    const auto step = [&](const gpt::tensor<float>& x) {
      const auto& logits = head.forward(block.forward(embedding.forward(x, c), a), b);
      (void)embedding.backward(block.backward(head.backward(logits, b), a), c);
    };
    const long nothing = tensors_allocated;
    step(tokens);
    const long first = tensors_allocated;
    CHECK(first > nothing);
    step(few);
    step(tokens);
    CHECK(tensors_allocated == first);
  }
}
