// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <gpt/tensor.hpp>

namespace gpt {

/// The function inside an MLP, on rows of x or, if it is gated, of x and y side by side.
/// GELU in its tanh form (Hendrycks and Gimpel 2016), 0.5 x (1 + tanh u), is x * sigmoid(2 u); SwiGLU (Shazeer 2020) is
/// x * sigmoid(x) * y. Both need one exponential.
template <class Real>
struct activation {
  bool gated = false;
  Eigen::Index width = 0;  ///< of x

  void forward(const tensor<Real>& inside, tensor<Real>& sigmoid, tensor<Real>& active) const {
    sigmoid.resize(inside.rows(), static_cast<std::size_t>(width));
    active.resize(sigmoid.rows(), sigmoid.columns());
    const auto x = map(inside).leftCols(width).array();
    auto s = map(sigmoid).array();
    if (gated) {
      s = (1 + (-x).exp()).inverse();
      map(active).array() = x * s * map(inside).rightCols(width).array();
    } else {
      s = (1 + (x * (-2 * slope - 2 * slope * bend * x.square())).exp()).inverse();
      map(active).array() = x * s;
    }
  }

  /// `gradient`: of what is active; `found`: of what is inside.
  template <class Gradient>
  void backward(const Gradient& gradient, const tensor<Real>& inside, const tensor<Real>& sigmoid, tensor<Real>& found) const {
    const auto dactive = gradient.array();
    found.resize(inside.rows(), inside.columns());
    const auto up = map(inside);
    const auto x = up.leftCols(width).array();
    const auto s = map(sigmoid).array();
    auto dx = map(found).leftCols(width).array();
    if (gated) {
      dx = dactive * up.rightCols(width).array() * s * (1 + x * (1 - s));
      map(found).rightCols(width).array() = dactive * x * s;
    } else {
      dx = dactive * s * (1 + x * (1 - s) * (2 * slope + 6 * slope * bend * x.square()));
    }
  }

 private:
  static constexpr Real slope = static_cast<Real>(0.7978845608028654);  // sqrt(2 / pi)
  static constexpr Real bend = static_cast<Real>(0.044715);
};

}  // namespace gpt
