// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include <gpt/parameter.hpp>
#include <gpt/product.hpp>

namespace gpt {

/// y = x W + b; x: rows x inputs, W: inputs x outputs, b (if any): 1 x outputs.
/// Here as in all layers of this folder: a split_layer; what it returns lies in the context and stays until the next call of
/// the same function with it, and no tensor is allocated once a context has seen as many rows.
template <class Real>
class linear {
 public:
  struct context {
    const Real* input = nullptr;
    tensor<Real> output, input_gradient;
  };

  /// Weights with a standard deviation of gain / sqrt(inputs), no bias at first.
  linear(std::size_t inputs, std::size_t outputs, bool bias, double gain, hetsched::random_source& random)
      : weight_(inputs, outputs, gain / std::sqrt(static_cast<double>(inputs)), random) {
    if (bias) bias_ = parameter<Real>(1, outputs);
  }
  /// This rank's part of one with such matrices side by side.
  linear(std::size_t inputs, const std::vector<std::size_t>& pieces, bool bias, double gain, hetsched::random_source& random,
         const part_of& own)
      : weight_(inputs, pieces, gain / std::sqrt(static_cast<double>(inputs)), random, own) {
    if (bias) bias_ = parameter<Real>(1, weight_.value.columns());
    cut_.dimension = own.dimension;
    if (pieces.size() > 1)
      for (const std::size_t width : pieces) cut_.pieces.push_back(own.extent(width));
  }

  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    c.input = x.data();
    c.output.resize(x.rows(), weight_.value.columns());
    multiply<Real>(map(c.output), map(x), map(weight_.value));
    if (has_bias()) map(c.output).rowwise() += map(bias_.value).row(0);
    return c.output;
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    c.input_gradient.resize(gradient.rows(), weight_.value.rows());
    multiply_transposed<Real>(map(c.input_gradient), map(gradient), map(weight_.value));
    return c.input_gradient;
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    add_product<Real>(map(weight_.gradient), map(c.input, gradient, weight_.value.rows()), map(gradient));
    if (has_bias()) map(bias_.gradient) += map(gradient).colwise().sum();
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    backward_weight(gradient, c);
    return backward_input(gradient, c);
  }

  [[nodiscard]] tensor_list<Real> parameters() {
    return has_bias() ? tensor_list<Real>{weight_.value, bias_.value} : tensor_list<Real>{weight_.value};
  }
  [[nodiscard]] tensor_list<Real> gradients() {
    return has_bias() ? tensor_list<Real>{weight_.gradient, bias_.gradient} : tensor_list<Real>{weight_.gradient};
  }
  [[nodiscard]] cut_list parameter_cuts() const { return has_bias() ? cut_list{cut_, cut_} : cut_list{cut_}; }

 private:
  [[nodiscard]] bool has_bias() const { return bias_.value.size() > 0; }
  parameter<Real> weight_, bias_;
  hetsched::parameter_cut cut_;  ///< of both
};

}  // namespace gpt
