// SPDX-License-Identifier: Apache-2.0
#include <gpt/cross_entropy.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/linear.hpp>
#include <gpt/norm.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;
using gpt::map;
using tensor = gpt::tensor<double>;

static_assert(pipeline_tensor<gpt::tensor<float>> && pipeline_tensor<tensor>);

TEST_CASE("a tensor keeps rows and columns, begins on 64 bytes, and is empty when moved from") {
  tensor t(tensor_shape{3, 2});
  CHECK(t.shape() == std::array<std::size_t, 2>{3, 2});
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<double>(i);
  CHECK(t(2, 1) == 5);
  CHECK(map(std::as_const(t))(1, 0) == 2);
  const tensor same = t;
  const double* const data = t.data();
  tensor moved = std::move(t);
  CHECK(moved == same);
  CHECK(moved.data() == data);
  CHECK(t.shape() == std::array<std::size_t, 2>{0, 0});  // NOLINT: what moving leaves behind is promised
  CHECK(t.size() == 0);
  t = tensor(1, 1);
  swap(t, moved);
  CHECK(t.data() == data);
  for (const std::size_t n : {1u, 3u, 7u, 100u})
    CHECK(reinterpret_cast<std::uintptr_t>(gpt::tensor<float>(n, n).data()) % 64 == 0);
  CHECK_THROWS_AS(tensor(tensor_shape{3}), input_error);
  CHECK_THROWS_AS(tensor(tensor_shape{3, 1, 1}), input_error);
}

TEST_CASE("linear, norm, embedding and head agree with finite differences") {
  random_source random(1);
  for (const bool bias : {true, false}) {
    CAPTURE(bias);
    check_example(gpt::linear<double>(4, 3, bias, 1, random), random_tensor<double>(random, 5, 4),
                  random_tensor<double>(random, 2, 4), 2);
  }
  for (const auto kind : {gpt::norm_kind::layer, gpt::norm_kind::rms}) {
    CAPTURE(kind == gpt::norm_kind::rms);
    check_example(gpt::norm<double>(kind, 7), random_tensor<double>(random, 5, 7), random_tensor<double>(random, 2, 7), 3);
  }
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    check_example(gpt::embedding<double>(m, gpt::layer_random(m.seed, 0)), random_tokens<double>(random, 3 * m.sequence, m.vocab),
                  random_tokens<double>(random, m.sequence, m.vocab), 4, true);
    check_example(gpt::head<double>(m, gpt::layer_random(m.seed, 0)), random_tensor<double>(random, 10, 8),
                  random_tensor<double>(random, 5, 8), 5);
  }
}

TEST_CASE("norms give what they are named after") {
  random_source random(5);
  const auto x = random_tensor<double>(random, 6, 9, 3);
  gpt::norm<double> layer(gpt::norm_kind::layer, 9), rms(gpt::norm_kind::rms, 9);
  gpt::norm<double>::context a, b;
  const tensor centred = layer.forward(x, a), scaled = rms.forward(x, b);
  for (std::size_t i = 0; i < x.rows(); ++i) {
    double mean = 0, variance = 0, square = 0;
    for (std::size_t j = 0; j < 9; ++j) {
      mean += centred(i, j) / 9;
      square += scaled(i, j) * scaled(i, j) / 9;
    }
    for (std::size_t j = 0; j < 9; ++j) variance += (centred(i, j) - mean) * (centred(i, j) - mean) / 9;
    CHECK(mean == doctest::Approx(0).epsilon(1e-12));
    CHECK(variance == doctest::Approx(1).epsilon(1e-4));
    CHECK(square == doctest::Approx(1).epsilon(1e-4));
    CHECK(scaled(i, 0) / scaled(i, 1) == doctest::Approx(x(i, 0) / x(i, 1)));
  }
}

TEST_CASE("an embedding adds the position in the sample to the token, and refuses what is no token") {
  const gpt::config m{.hidden = 4, .heads = 1, .sequence = 3, .vocab = 5};
  gpt::embedding<float> layer(m, gpt::layer_random(1, 0));
  const auto parameters = layer.parameters();
  gpt::tensor<float> x(6, 1);
  const std::vector<std::size_t> tokens{4, 0, 4, 1, 1, 3};
  for (std::size_t r = 0; r < 6; ++r) x(r, 0) = static_cast<float>(tokens[r]);
  gpt::embedding<float>::context c;
  const gpt::tensor<float> y = layer.forward(x, c);
  for (std::size_t r = 0; r < 6; ++r)
    for (std::size_t j = 0; j < 4; ++j) CHECK(y(r, j) == parameters[0](tokens[r], j) + parameters[1](r % 3, j));
  CHECK(layer.backward_input(y, c) == gpt::tensor<float>(6, 1));
  for (const float bad : {5.0f, -1.0f, 0.5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CAPTURE(bad);
    x(4, 0) = bad;
    CHECK_THROWS_AS(layer.forward(x, c), input_error);
  }
}

TEST_CASE("cross-entropy has its closed forms, does not overflow, and agrees with finite differences") {
  for (const int vocab : {2, 7, 256}) {
    CAPTURE(vocab);
    random_source random(static_cast<std::uint64_t>(vocab));
    const auto targets = random_tokens<double>(random, 4, vocab);
    const auto columns = static_cast<std::size_t>(vocab);
    for (const double level : {0.0, -1e300, 3e4}) {
      tensor uniform(4, columns);
      map(uniform).setConstant(level);
      const auto found = gpt::cross_entropy(uniform, targets);
      if (std::abs(level) < 1e10) CHECK(found.value == doctest::Approx(std::log(vocab)).epsilon(1e-12));
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < columns; ++j)
          CHECK(found.gradient(i, j) == doctest::Approx((1.0 / vocab - (static_cast<double>(j) == targets(i, 0) ? 1 : 0)) / 4));
    }
    // All but sure, of the right token and of a wrong one.
    tensor sure(4, columns);
    for (std::size_t i = 0; i < 4; ++i) sure(i, static_cast<std::size_t>(targets(i, 0))) = 1e6;
    CHECK(gpt::cross_entropy(sure, targets).value == 0);
    for (std::size_t i = 0; i < 4; ++i) sure(i, static_cast<std::size_t>(targets(i, 0))) = -1e6;
    CHECK(gpt::cross_entropy(sure, targets).value == doctest::Approx(1e6 + std::log(vocab - 1)));

    auto logits = random_tensor<double>(random, 4, columns, 2);
    const auto gradient = gpt::cross_entropy(logits, targets).gradient;
    check_differences(logits, gradient, [&] { return gpt::cross_entropy(logits, targets).value; });
    double direct = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < columns; ++j) sum += std::exp(logits(i, j));
      direct -= std::log(std::exp(logits(i, static_cast<std::size_t>(targets(i, 0)))) / sum) / 4;
    }
    CHECK(gpt::cross_entropy(logits, targets).value == doctest::Approx(direct).epsilon(1e-12));
    CHECK_THROWS_AS((void)gpt::cross_entropy(logits, tensor(3, 1)), input_error);
    tensor bad(4, 1);
    bad(2, 0) = vocab;
    CHECK_THROWS_AS((void)gpt::cross_entropy(logits, bad), input_error);
  }
}
