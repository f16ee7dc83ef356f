// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <gpt/linear.hpp>
#include <gpt/sequence_slices.hpp>

namespace gpt {

/// A linear layer whose columns are cut over a tensor axis: a slice of every sequence goes in, and all rows of this rank's
/// columns come out.
template <class Real>
class column_linear {
 public:
  struct context {
    typename linear<Real>::context product;
    tensor<Real> input, input_gradient;  ///< all rows; this rank's slice
  };

  /// `pieces`: the matrices that lie side by side in the outputs, each cut by itself.
  column_linear(std::size_t inputs, const std::vector<std::size_t>& pieces, bool bias, std::size_t sequence,
                sequence_slices<Real> slices, hetsched::random_source& random)
      : sequence_(sequence), slices_(std::move(slices)), linear_(inputs, pieces, bias, 1, random, slices_.columns()) {}

  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    return linear_.forward(slices_.gather(x, sequence_, c.input), c.product);
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    (void)linear_.backward_input(gradient, c.product);
    return slices_.sum(c.product.input_gradient, sequence_, c.input_gradient);
  }
  /// What backward_input has returned.
  [[nodiscard]] const tensor<Real>& input_gradient(const context& c) const {
    return slices_.parts() == 1 ? c.product.input_gradient : c.input_gradient;
  }
  void backward_weight(const tensor<Real>& gradient, context& c) { linear_.backward_weight(gradient, c.product); }

  [[nodiscard]] tensor_list<Real> parameters() { return linear_.parameters(); }
  [[nodiscard]] tensor_list<Real> gradients() { return linear_.gradients(); }
  [[nodiscard]] cut_list parameter_cuts() const { return linear_.parameter_cuts(); }

 private:
  std::size_t sequence_;
  sequence_slices<Real> slices_;
  linear<Real> linear_;
};

/// A linear layer whose rows are cut over a tensor axis: all rows of this rank's columns go in, and a slice of every sequence
/// comes out, the sum over the ranks and the bias, which all ranks have.
template <class Real>
class row_linear {
 public:
  struct context {
    typename linear<Real>::context product;
    tensor<Real> output, gradient;  ///< this rank's slice; all rows
  };

  row_linear(std::size_t inputs, std::size_t outputs, bool bias, double gain, std::size_t sequence, sequence_slices<Real> slices,
             hetsched::random_source& random)
      : sequence_(sequence), slices_(std::move(slices)), linear_(inputs, {outputs}, false, gain, random, slices_.columns(0)) {
    if (bias) bias_ = parameter<Real>(1, outputs);
  }

  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    (void)linear_.forward(x, c.product);
    tensor<Real>& y = slices_.sum(c.product.output, sequence_, c.output);
    if (has_bias()) map(y).rowwise() += map(bias_.value).row(0);
    return y;
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    return linear_.backward_input(slices_.gather(gradient, sequence_, c.gradient), c.product);
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    linear_.backward_weight(slices_.parts() == 1 ? gradient : c.gradient, c.product);
    if (has_bias()) map(bias_.gradient) += map(gradient).colwise().sum();
  }

  [[nodiscard]] tensor_list<Real> parameters() {
    return has_bias() ? join<Real>(linear_.parameters(), {bias_.value}) : linear_.parameters();
  }
  [[nodiscard]] tensor_list<Real> gradients() {
    return has_bias() ? join<Real>(linear_.gradients(), {bias_.gradient}) : linear_.gradients();
  }
  [[nodiscard]] cut_list parameter_cuts() const {
    auto cuts = linear_.parameter_cuts();
    if (has_bias()) cuts.push_back(on_slices());
    return cuts;
  }

 private:
  [[nodiscard]] bool has_bias() const { return bias_.value.size() > 0; }
  std::size_t sequence_;
  sequence_slices<Real> slices_;
  linear<Real> linear_;
  parameter<Real> bias_;
};

}  // namespace gpt
