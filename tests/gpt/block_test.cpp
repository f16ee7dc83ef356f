// SPDX-License-Identifier: Apache-2.0
#include <gpt/block.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

#include "../sanitizer_share.hpp"
#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;
using tensor = gpt::tensor<double>;

namespace {

/// Attention row by row, with a head of keys and values per query head, complex numbers for rotary positions, and no maximum
/// taken off the scores.
tensor attention_by_loops(const gpt::config& m, const tensor& x, const gpt::tensor_list<double>& parameters) {
  const auto hidden = static_cast<std::size_t>(m.hidden), heads = static_cast<std::size_t>(m.heads);
  const auto kv = static_cast<std::size_t>(m.key_heads()), size = hidden / heads, sequence = static_cast<std::size_t>(m.sequence);
  const tensor& w = parameters[0];
  const tensor& out = parameters[m.bias ? 2 : 1];
  // Number k of a head that begins at column `first` of queries, keys and values, seen from row r.
  const auto project = [&](std::size_t r, std::size_t first, std::size_t k) {
    double sum = m.bias ? parameters[1](0, first + k) : 0;
    for (std::size_t j = 0; j < hidden; ++j) sum += x(r, j) * w(j, first + k);
    return sum;
  };
  const auto turned = [&](std::size_t r, std::size_t first) {
    std::vector<double> v(size);
    for (std::size_t k = 0; k < size; ++k) v[k] = project(r, first, k);
    if (m.positions != gpt::position_kind::rotary) return v;
    for (std::size_t k = 0; k < size / 2; ++k) {
      const double angle =
          static_cast<double>(r % sequence) / std::pow(10000.0, static_cast<double>(2 * k) / static_cast<double>(size));
      const auto z = std::complex<double>(v[k], v[k + size / 2]) * std::polar(1.0, angle);
      v[k] = z.real();
      v[k + size / 2] = z.imag();
    }
    return v;
  };
  tensor y(x.rows(), hidden);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t c = 0; c < hidden; ++c) y(r, c) = m.bias ? parameters[3](0, c) : 0;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t group = h / (heads / kv);
      const auto q = turned(r, h * size);
      std::vector<double> mixed(size, 0.0);
      double total = 0;
      for (std::size_t seen = r - r % sequence; seen <= r; ++seen) {
        const auto k = turned(seen, (heads + group) * size);
        double score = 0;
        for (std::size_t i = 0; i < size; ++i) score += q[i] * k[i];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
        total += weight;
        for (std::size_t i = 0; i < size; ++i) mixed[i] += weight * project(seen, (heads + kv + group) * size, i);
      }
      for (std::size_t c = 0; c < hidden; ++c)
        for (std::size_t i = 0; i < size; ++i) y(r, c) += mixed[i] / total * out(h * size + i, c);
    }
  }
  return y;
}

tensor mlp_by_loops(const gpt::config& m, const tensor& x, const gpt::tensor_list<double>& parameters) {
  const auto width = static_cast<std::size_t>(m.ffn_width());
  const tensor& up = parameters[0];
  const tensor& down = parameters[m.bias ? 2 : 1];
  tensor y(x.rows(), x.columns());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t c = 0; c < x.columns(); ++c) y(r, c) = m.bias ? parameters[3](0, c) : 0;
    const auto at = [&](std::size_t j) {
      double sum = m.bias ? parameters[1](0, j) : 0;
      for (std::size_t k = 0; k < x.columns(); ++k) sum += x(r, k) * up(k, j);
      return sum;
    };
    for (std::size_t j = 0; j < width; ++j) {
      const double a = at(j);
      const double active = m.activation == gpt::activation_kind::swiglu
                                ? a / (1 + std::exp(-a)) * at(width + j)
                                : 0.5 * a * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
      for (std::size_t c = 0; c < x.columns(); ++c) y(r, c) += active * down(j, c);
    }
  }
  return y;
}

tensor experts_by_loops(const gpt::config& m, const tensor& x, const gpt::tensor_list<double>& parameters) {
  const auto hidden = x.columns(), experts = static_cast<std::size_t>(m.experts), width = static_cast<std::size_t>(m.ffn_width());
  const tensor& router = parameters[0];
  const tensor& up = parameters[1];
  const tensor& down = parameters[m.bias ? 3 : 2];
  std::vector<tensor> answers;
  for (std::size_t e = 0; e < experts; ++e) {
    // This expert's parts, as an mlp has them.
    tensor in(hidden, up.columns()), out(width, hidden), in_bias(1, up.columns()), out_bias(1, hidden);
    for (std::size_t i = 0; i < hidden; ++i) {
      for (std::size_t j = 0; j < up.columns(); ++j) in(i, j) = up(e * hidden + i, j);
      for (std::size_t j = 0; j < width; ++j) out(j, i) = down(e * hidden + i, j);
      if (m.bias) out_bias(0, i) = parameters[4](e, i);
    }
    for (std::size_t j = 0; m.bias && j < up.columns(); ++j) in_bias(0, j) = parameters[2](e, j);
    gpt::tensor_list<double> own{in};
    if (m.bias) own.push_back(in_bias);
    own.push_back(out);
    if (m.bias) own.push_back(out_bias);
    answers.push_back(mlp_by_loops(m, x, own));
  }
  tensor y(x.rows(), hidden);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    std::vector<double> score(experts, 0);
    double total = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      for (std::size_t i = 0; i < hidden; ++i) score[e] += x(r, i) * router(i, e);
      total += std::exp(score[e]);
    }
    for (std::size_t e = 0; e < experts; ++e) {
      int better = 0;
      for (std::size_t other = 0; other < experts; ++other) better += score[other] > score[e] ? 1 : 0;
      if (better >= m.experts_per_token) continue;
      for (std::size_t i = 0; i < hidden; ++i) y(r, i) += std::exp(score[e]) / total * answers[e](r, i);
    }
  }
  return y;
}

void check_close(const tensor& a, const tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a.data()[i] - b.data()[i]));
  CHECK(largest < 1e-12);
}

}  // namespace

TEST_CASE("attention, mlp and block agree with finite differences, whole and split, in every variant") {
  random_source random(1);
  const auto configs = small_configs();
  for (std::size_t k = 0; k < configs.size(); k += sanitizer_share) {
    const auto& m = configs[k];
    CAPTURE(m);
    const auto x = random_tensor<double>(random, 10, 8), other = random_tensor<double>(random, 15, 8);
    check_example(gpt::attention<double>(m, random), x, other, 2);
    check_example(gpt::mlp<double>(m, random), x, other, 3);
    check_example(gpt::block<double>(m, random), x, other, 4);
  }
}

TEST_CASE("blocks with experts agree with finite differences, and experts do what loops over the formula do") {
  random_source random(5);
  const auto configs = small_configs();
  for (std::size_t k = 0; k < configs.size(); k += 3 * sanitizer_share) {
    auto m = configs[k];
    m.experts = 3;
    m.experts_per_token = 1 + static_cast<int>(k / 3 % 3);
    CAPTURE(m);
    const auto x = random_tensor<double>(random, 10, 8, 2), other = random_tensor<double>(random, 15, 8);
    gpt::experts<double> experts(m, random);
    for (tensor& p : experts.parameters()) randomise(random, p);
    check_example(gpt::experts<double>(m, random), x, other, 3);
    check_example(gpt::block<double, gpt::experts<double>>(m, random, gpt::sequence_slices<double>(), false, gpt::ring<double>(),
                                                           gpt::expert_axis<double>()),
                  x, other, 4);
    gpt::experts<double>::context c;
    check_close(experts.forward(x, c), experts_by_loops(m, x, experts.parameters()));
  }
}

TEST_CASE("attention and mlp do what loops over the formulas do") {
  random_source random(7);
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    const auto x = random_tensor<double>(random, 15, 8, 2);
    gpt::attention<double> attention(m, random);
    gpt::mlp<double> mlp(m, random);
    for (tensor& p : attention.parameters()) randomise(random, p);
    for (tensor& p : mlp.parameters()) randomise(random, p);
    gpt::attention<double>::context a;
    gpt::mlp<double>::context b;
    check_close(attention.forward(x, a), attention_by_loops(m, x, attention.parameters()));
    check_close(mlp.forward(x, b), mlp_by_loops(m, x, mlp.parameters()));
  }
}

TEST_CASE("rotary positions: only distances count") {
  random_source random(8);
  const gpt::rotary<double> rotary(40, 6);
  auto q = random_tensor<double>(random, 1, 6), k = random_tensor<double>(random, 1, 6);
  const auto product_at = [&](std::size_t i, std::size_t j) {
    tensor a(40, 6), b(40, 6);
    for (std::size_t c = 0; c < 6; ++c) {
      a(i, c) = q(0, c);
      b(j, c) = k(0, c);
    }
    rotary.turn(a, 1, 1);
    rotary.turn(b, 1, 1);
    double sum = 0;
    for (std::size_t c = 0; c < 6; ++c) sum += a(i, c) * b(j, c);
    return sum;
  };
  for (std::size_t shift = 0; shift < 30; ++shift)
    CHECK(product_at(9 + shift, 2 + shift) == doctest::Approx(product_at(9, 2)).epsilon(1e-12));
  CHECK(product_at(9, 2) != doctest::Approx(product_at(9, 3)));
}

TEST_CASE("neither later tokens nor other samples matter") {
  random_source random(9);
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    gpt::block<float> block(m, random);
    auto x = random_tensor<float>(random, 15, 8);
    gpt::block<float>::context c;
    const gpt::tensor<float> y = block.forward(x, c);
    const auto changed = static_cast<std::size_t>(random.integer(5, 9));  // a row of the second sample
    for (std::size_t j = 0; j < 8; ++j) x(changed, j) = static_cast<float>(random.uniform(-50, 50));
    const gpt::tensor<float> after = block.forward(x, c);
    for (std::size_t r = 0; r < 15; ++r)
      for (std::size_t j = 0; j < 8; ++j) {
        CAPTURE(r);
        if (r < changed || r >= 10)
          CHECK(after(r, j) == y(r, j));
        else
          CHECK(after(r, j) != y(r, j));
      }
  }
}

TEST_CASE("large scores do not overflow, and blocks of floats are near those of doubles") {
  const gpt::config m{.layers = 1, .hidden = 8, .heads = 2, .sequence = 6, .positions = gpt::position_kind::rotary};
  gpt::block<float> small(m, gpt::layer_random(3, 1));
  gpt::block<double> large(m, gpt::layer_random(3, 1));
  random_source random(10);
  const auto x = random_tensor<double>(random, 12, 8);
  gpt::tensor<float> rounded(12, 8);
  for (std::size_t i = 0; i < x.size(); ++i) rounded.data()[i] = static_cast<float>(x.data()[i]);
  gpt::block<float>::context a;
  gpt::block<double>::context b;
  const auto& y = small.forward(rounded, a);
  const auto& z = large.forward(x, b);
  for (std::size_t i = 0; i < y.size(); ++i)
    CHECK(static_cast<double>(y.data()[i]) == doctest::Approx(z.data()[i]).epsilon(1e-4));

  for (gpt::tensor<float>& p : small.parameters())
    for (std::size_t i = 0; i < p.size(); ++i) p.data()[i] *= 1000;
  const auto& far = small.forward(rounded, a);
  for (std::size_t i = 0; i < far.size(); ++i) CHECK(std::isfinite(far.data()[i]));
  const auto& back = small.backward(rounded, a);
  for (std::size_t i = 0; i < back.size(); ++i) CHECK(std::isfinite(back.data()[i]));
}
