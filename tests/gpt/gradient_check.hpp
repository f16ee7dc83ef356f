// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <gpt/config.hpp>
#include <gpt/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layer/check_layer.hpp>
#include <hetsched/runtime/layer/layer.hpp>

namespace gpt {

inline std::ostream& operator<<(std::ostream& out, const config& m) {
  return out << "layers " << m.layers << " hidden " << m.hidden << " heads " << m.heads << " kv_heads " << m.kv_heads
             << " ffn_hidden " << m.ffn_hidden << " sequence " << m.sequence << " vocab " << m.vocab << " rms "
             << (m.norm == norm_kind::rms) << " swiglu " << (m.activation == activation_kind::swiglu) << " rotary "
             << (m.positions == position_kind::rotary) << " experts " << m.experts << "/" << m.experts_per_token << " bias "
             << m.bias << " tied " << m.tied << " seed " << m.seed;
}

}  // namespace gpt

namespace hetsched::test {

/// Every kind of small model, of every combination of its switches.
inline std::vector<gpt::config> small_configs() {
  std::vector<gpt::config> all;
  for (int k = 0; k < 16; ++k)
    all.push_back({.layers = 2,
                   .hidden = 8,
                   .heads = k % 3 == 0 ? 2 : 4,
                   .kv_heads = k % 3 == 1 ? 2 : (k % 3 == 2 ? 1 : 0),
                   .ffn_hidden = k % 2 == 0 ? 6 : 0,
                   .sequence = 5,
                   .vocab = 11,
                   .norm = k & 1 ? gpt::norm_kind::rms : gpt::norm_kind::layer,
                   .activation = k & 2 ? gpt::activation_kind::swiglu : gpt::activation_kind::gelu,
                   .positions = k & 4 ? gpt::position_kind::rotary : gpt::position_kind::learned,
                   .bias = (k & 8) == 0,
                   .tied = k % 5 != 0,
                   .seed = static_cast<std::uint64_t>(k)});
  return all;
}

template <class Real>
void randomise(random_source& random, gpt::tensor<Real>& t, double size = 1) {
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<Real>(random.uniform(-size, size));
}

template <class Real>
gpt::tensor<Real> random_tensor(random_source& random, std::size_t rows, std::size_t columns, double size = 1) {
  gpt::tensor<Real> t(rows, columns);
  randomise(random, t, size);
  return t;
}

template <class Real>
gpt::tensor<Real> random_tokens(random_source& random, int rows, int vocab) {
  gpt::tensor<Real> t(static_cast<std::size_t>(rows), 1);
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<Real>(random.integer(0, vocab - 1));
  return t;
}

template <class Real>
double product(const gpt::tensor<Real>& a, const gpt::tensor<Real>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a.data()[i]) * static_cast<double>(b.data()[i]);
  return sum;
}

/// Central differences of value() in every number of x against `expected`.
template <class Value>
void check_differences(gpt::tensor<double>& x, const gpt::tensor<double>& expected, Value value) {
  REQUIRE(expected.shape() == x.shape());
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(expected.data()[i]));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x.data()[i], h = 1e-5;
    x.data()[i] = at + h;
    const double above = value();
    x.data()[i] = at - h;
    const double below = value();
    x.data()[i] = at;
    const double slope = (above - below) / (2 * h);
    INFO("number " << i << " of " << x.rows() << " x " << x.columns() << ": " << expected.data()[i] << ", by differences "
                   << slope);
    CHECK(std::abs(slope - expected.data()[i]) <= 1e-7 * (1 + largest));
  }
}

/// A layer with any parameters passes hetsched::check_layer, and a context that saw another microbatch, of another number of
/// samples, gives the same bits, in halves that are moved apart. `tokens`: inputs are drawn from the elements of x.
template <class Layer>
void check_example(Layer layer, const gpt::tensor<double>& x, const gpt::tensor<double>& other, std::uint64_t seed,
                   bool tokens = false) {
  using tensor = gpt::tensor<double>;
  static_assert(split_layer<Layer, tensor>);
  random_source random(seed);
  for (tensor& p : layer.parameters()) randomise(random, p, 0.7);
  check_layer_options options{.input_gradient = !tokens, .seed = seed, .elements = 1000};
  if (tokens) options.input_element = [&](random_source& r) { return x.data()[r.integer(0, static_cast<int>(x.size()) - 1)]; };
  const auto report = check_layer<tensor>(layer, {x.rows(), x.columns()}, options);
  INFO(report.text());
  CHECK(report.ok());

  typename Layer::context context, second;
  const tensor y = layer.forward(x, context);
  const auto weights = random_tensor<double>(random, y.rows(), y.columns());
  const auto gradients = layer.gradients();
  std::vector<tensor> before, whole;
  for (tensor& g : gradients) {
    randomise(random, g);
    before.push_back(g);
  }
  const tensor dx = layer.backward(weights, context);
  for (const tensor& g : gradients) whole.push_back(g);
  (void)layer.forward(other, context);
  (void)layer.backward(layer.forward(other, second), second);
  for (std::size_t n = 0; n < gradients.size(); ++n) gradients[n].get() = before[n];
  CHECK(tensor(layer.forward(x, context)) == y);
  const tensor y_other = layer.forward(other, second);
  CHECK(tensor(layer.backward_input(weights, context)) == dx);
  (void)layer.backward_input(y_other, second);
  auto moved = std::move(context);  // what it points to stays
  layer.backward_weight(weights, moved);
  for (std::size_t n = 0; n < gradients.size(); ++n) CHECK(gradients[n].get() == whole[n]);
}

}  // namespace hetsched::test
