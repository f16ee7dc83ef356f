// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <gpt/config.hpp>
#include <gpt/parallel_linear.hpp>

namespace gpt {

/// Two linear layers with a function between them.
/// GELU in its tanh form (Hendrycks and Gimpel 2016), 0.5 x (1 + tanh u), is x * sigmoid(2 u); SwiGLU (Shazeer 2020) is
/// x * sigmoid(x) * y with x and y the halves of a first layer twice as wide. Both need one exponential. Ranks of a tensor axis
/// have a part of the width each.
template <class Real>
class mlp {
 public:
  struct context {
    typename column_linear<Real>::context up;
    typename row_linear<Real>::context down;
    tensor<Real> sigmoid, active;  ///< rows x ffn
    tensor<Real> up_gradient;
  };

  mlp(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices = sequence_slices<Real>())
      : gated_(m.activation == activation_kind::swiglu),
        width_(m.ffn_width() / static_cast<int>(slices.parts())),
        up_(static_cast<std::size_t>(m.hidden), std::vector<std::size_t>(gated_ ? 2 : 1, static_cast<std::size_t>(m.ffn_width())),
            m.bias, static_cast<std::size_t>(m.sequence), slices, random),
        down_(static_cast<std::size_t>(m.ffn_width()), static_cast<std::size_t>(m.hidden), m.bias, m.residual_gain(),
              static_cast<std::size_t>(m.sequence), slices, random) {}

  const tensor<Real>& forward(const tensor<Real>& input, context& c) {
    const auto up = map(up_.forward(input, c.up));
    c.sigmoid.resize(c.up.product.output.rows(), static_cast<std::size_t>(width_));
    c.active.resize(c.sigmoid.rows(), c.sigmoid.columns());
    const auto x = up.leftCols(width_).array();
    auto sigmoid = map(c.sigmoid).array();
    if (gated_) {
      sigmoid = (1 + (-x).exp()).inverse();
      map(c.active).array() = x * sigmoid * up.rightCols(width_).array();
    } else {
      sigmoid = (1 + (x * (-2 * slope - 2 * slope * bend * x.square())).exp()).inverse();
      map(c.active).array() = x * sigmoid;
    }
    return down_.forward(c.active, c.down);
  }

  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    const auto dactive = map(down_.backward_input(gradient, c.down)).array();
    c.up_gradient.resize(c.up.product.output.rows(), c.up.product.output.columns());
    const auto up = map(std::as_const(c.up.product.output));
    const auto x = up.leftCols(width_).array();
    const auto sigmoid = map(c.sigmoid).array();
    auto dx = map(c.up_gradient).leftCols(width_).array();
    if (gated_) {
      dx = dactive * up.rightCols(width_).array() * sigmoid * (1 + x * (1 - sigmoid));
      map(c.up_gradient).rightCols(width_).array() = dactive * x * sigmoid;
    } else {
      dx = dactive * sigmoid * (1 + x * (1 - sigmoid) * (2 * slope + 6 * slope * bend * x.square()));
    }
    return up_.backward_input(c.up_gradient, c.up);
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    down_.backward_weight(gradient, c.down);
    up_.backward_weight(c.up_gradient, c.up);
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }
  /// What backward_input has returned.
  [[nodiscard]] const tensor<Real>& input_gradient(const context& c) const { return up_.input_gradient(c.up); }

  [[nodiscard]] tensor_list<Real> parameters() { return join<Real>(up_.parameters(), down_.parameters()); }
  [[nodiscard]] tensor_list<Real> gradients() { return join<Real>(up_.gradients(), down_.gradients()); }
  [[nodiscard]] cut_list parameter_cuts() const { return join(up_.parameter_cuts(), down_.parameter_cuts()); }

 private:
  static constexpr Real slope = static_cast<Real>(0.7978845608028654);  // sqrt(2 / pi)
  static constexpr Real bend = static_cast<Real>(0.044715);

  bool gated_;
  Eigen::Index width_;
  column_linear<Real> up_;
  row_linear<Real> down_;
};

}  // namespace gpt
