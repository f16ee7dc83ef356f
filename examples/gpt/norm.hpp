// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <gpt/config.hpp>
#include <gpt/parameter.hpp>

namespace gpt {

/// Normalises each row by itself.
template <class Real>
class norm {
 public:
  struct context {
    tensor<Real> unit, scale;  ///< rows before gain and bias; 1 / deviation of each
    tensor<Real> output, input_gradient;
  };

  norm(norm_kind kind, std::size_t width) : gain_(1, width) {
    map(gain_.value).setOnes();
    if (kind == norm_kind::layer) bias_ = parameter<Real>(1, width);
  }

  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    c.unit.resize(x.rows(), x.columns());
    c.scale.resize(x.rows(), 1);
    c.output.resize(x.rows(), x.columns());
    auto unit = map(c.unit);
    auto output = map(c.output);
    const auto gain = map(gain_.value).row(0).array();
    for (Eigen::Index i = 0; i < unit.rows(); ++i) {
      auto row = unit.row(i).array();
      row = map(x).row(i).array();
      if (centred()) row -= row.mean();
      const Real scale = 1 / std::sqrt(row.square().mean() + static_cast<Real>(1e-5));
      row *= scale;
      c.scale.data()[i] = scale;
      output.row(i).array() = row * gain;
      if (centred()) output.row(i) += map(bias_.value).row(0);
    }
    return c.output;
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    c.input_gradient.resize(gradient.rows(), gradient.columns());
    auto dx = map(c.input_gradient);
    const auto gain = map(gain_.value).row(0).array();
    for (Eigen::Index i = 0; i < dx.rows(); ++i) {
      const auto unit = map(c.unit).row(i).array();
      auto row = dx.row(i).array();
      row = map(gradient).row(i).array() * gain;
      const Real along = (row * unit).mean();
      const Real mean = centred() ? row.mean() : Real{0};
      row = (row - mean - unit * along) * c.scale.data()[i];
    }
    return c.input_gradient;
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    auto sum = map(gain_.gradient).row(0);
    for (Eigen::Index i = 0; i < map(gradient).rows(); ++i)
      sum.array() += map(gradient).row(i).array() * map(c.unit).row(i).array();
    if (centred()) map(bias_.gradient) += map(gradient).colwise().sum();
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    backward_weight(gradient, c);
    return backward_input(gradient, c);
  }

  [[nodiscard]] tensor_list<Real> parameters() {
    return centred() ? tensor_list<Real>{gain_.value, bias_.value} : tensor_list<Real>{gain_.value};
  }
  [[nodiscard]] tensor_list<Real> gradients() {
    return centred() ? tensor_list<Real>{gain_.gradient, bias_.gradient} : tensor_list<Real>{gain_.gradient};
  }
  [[nodiscard]] cut_list parameter_cuts() const { return cut_list(centred() ? 2 : 1, on_slices()); }

 private:
  [[nodiscard]] bool centred() const { return bias_.value.size() > 0; }
  parameter<Real> gain_, bias_;
};

}  // namespace gpt
