// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only door to Eigen (component eigen). Include <unsupported/Eigen/CXX11/Tensor> too where tensors are used: it takes longer
// to compile than all else here, so it is only declared.
#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace Eigen {
template <typename Scalar, int Rank, int Options, typename IndexType>
class Tensor;
}  // namespace Eigen

namespace hetsched {

namespace detail {

// A class of its own: were it the traits that the assertion failed in, clang would go on to say what else they lack.
template <bool Taken>
struct eigen_layout {
  static_assert(
      Taken,
      "a pipeline takes Eigen's matrices and tensors if they are row-major and of any size: "
      "hetsched::eigen::matrix<Real>, which is Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, or "
      "Eigen::Tensor<Real, Rank, Eigen::RowMajor>");
  static constexpr bool known = true;
};

/// A shape with `Rank` extents: leading ones are added or left out.
/// Throws: input_error where that does not do.
template <std::size_t Rank>
[[nodiscard]] std::array<std::size_t, Rank> eigen_extents(const tensor_shape& shape) {
  std::array<std::size_t, Rank> extents;
  extents.fill(1);
  const std::size_t surplus = shape.size() > Rank ? shape.size() - Rank : 0;
  for (std::size_t i = 0; i < surplus; ++i)
    if (shape[i] != 1)
      throw input_error("found a shape of " + std::to_string(shape.size()) + " extents, expected at most " +
                        std::to_string(Rank));
  for (std::size_t i = surplus; i < shape.size(); ++i) extents[Rank - shape.size() + i] = shape[i];
  return extents;
}

}  // namespace detail

/// Matrices of Eigen, row-major and of any size: shape {rows, columns}. Others are refused by one message: parts of a tensor are
/// cut where the last extent lies side by side, which columns of a column-major matrix do not.
template <class Real, int Rows, int Columns, int Options, int MaxRows, int MaxColumns>
struct tensor_traits<Eigen::Matrix<Real, Rows, Columns, Options, MaxRows, MaxColumns>> {
  using matrix_type = Eigen::Matrix<Real, Rows, Columns, Options, MaxRows, MaxColumns>;
  static_assert(detail::eigen_layout < matrix_type::IsRowMajor && Rows == Eigen::Dynamic && Columns == Eigen::Dynamic > ::known);
  using element = Real;
  static constexpr memory_space space = memory_space::host;
  static std::array<std::size_t, 2> shape(const matrix_type& m) { return {as_size(m.rows()), as_size(m.cols())}; }
  static Real* data(matrix_type& m) { return m.data(); }
  static const Real* data(const matrix_type& m) { return m.data(); }
  static matrix_type make(const tensor_shape& s) {
    const auto extents = detail::eigen_extents<2>(s);
    return matrix_type(static_cast<Eigen::Index>(extents[0]), static_cast<Eigen::Index>(extents[1]));
  }
};

/// Tensors of Eigen (unsupported/Eigen/CXX11/Tensor), row-major. Others are refused by one message.
template <class Real, int Rank, int Options, class Index>
struct tensor_traits<Eigen::Tensor<Real, Rank, Options, Index>> {
  using tensor_type = Eigen::Tensor<Real, Rank, Options, Index>;
  static_assert(detail::eigen_layout < (Options & Eigen::RowMajor) != 0 && (Rank > 0) > ::known);
  using element = Real;
  static constexpr memory_space space = memory_space::host;
  static std::array<std::size_t, Rank> shape(const tensor_type& t) {
    std::array<std::size_t, Rank> extents;
    for (std::size_t i = 0; i < extents.size(); ++i) extents[i] = as_size(t.dimension(i));
    return extents;
  }
  static Real* data(tensor_type& t) { return t.data(); }
  static const Real* data(const tensor_type& t) { return t.data(); }
  static tensor_type make(const tensor_shape& s) {
    const auto extents = detail::eigen_extents<Rank>(s);
    typename tensor_type::Dimensions dimensions;
    for (std::size_t i = 0; i < extents.size(); ++i) dimensions[i] = static_cast<Index>(extents[i]);
    return tensor_type(dimensions);
  }
};

/// What tensors and layers are on Eigen.
namespace eigen {

/// Rows x columns; a pipeline_tensor.
template <class Real>
using matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The numbers of any tensor on the host as a matrix, without a copy: its last extent is the columns, all others are rows.
template <pipeline_tensor Tensor>
requires(tensor_traits<Tensor>::space != memory_space::device) [[nodiscard]] auto map(const Tensor& t) {
  using traits = tensor_traits<Tensor>;
  Eigen::Index rows = 1, columns = 1;
  for (const auto extent : traits::shape(t)) {
    rows *= columns;
    columns = static_cast<Eigen::Index>(extent);
  }
  return Eigen::Map<const matrix<typename traits::element>>(traits::data(t), rows, columns);
}
template <pipeline_tensor Tensor>
requires(tensor_traits<Tensor>::space != memory_space::device) [[nodiscard]] auto map(Tensor& t) {
  using traits = tensor_traits<Tensor>;
  const auto seen = map(static_cast<const Tensor&>(t));
  return Eigen::Map<matrix<typename traits::element>>(traits::data(t), seen.rows(), seen.cols());
}

/// y = x W + b; x: rows x inputs, W: inputs x outputs, b: 1 x outputs. A split_layer.
template <class Real>
class linear {
 public:
  using tensor = matrix<Real>;
  struct context {
    const tensor* input = nullptr;
  };

  /// Weights are uniform with mean 0 and a standard deviation of 1 / sqrt(inputs), drawn as doubles; biases are 0.
  /// Requires: inputs > 0, outputs > 0.
  linear(Eigen::Index inputs, Eigen::Index outputs, random_source& random)
      : parameters_{tensor(inputs, outputs), tensor::Zero(1, outputs)},
        gradients_{tensor::Zero(inputs, outputs), tensor::Zero(1, outputs)} {
    HETSCHED_EXPECTS(inputs > 0 && outputs > 0);
    const double end = std::sqrt(3.0 / static_cast<double>(inputs));
    for (Eigen::Index i = 0; i < inputs * outputs; ++i) parameters_[0].data()[i] = static_cast<Real>(random.uniform(-end, end));
  }

  [[nodiscard]] tensor forward(const tensor& x, context& c) const {
    c.input = &x;
    tensor y = parameters_[1].replicate(x.rows(), 1);
    y.noalias() += x * parameters_[0];
    return y;
  }
  [[nodiscard]] tensor backward_input(const tensor& gradient, context&) const { return gradient * parameters_[0].transpose(); }
  void backward_weight(const tensor& gradient, const context& c) {
    gradients_[0].noalias() += c.input->transpose() * gradient;
    gradients_[1] += gradient.colwise().sum();
  }
  [[nodiscard]] tensor backward(const tensor& gradient, context& c) {
    backward_weight(gradient, c);
    return backward_input(gradient, c);
  }
  [[nodiscard]] std::array<tensor, 2>& parameters() { return parameters_; }  ///< W, b
  [[nodiscard]] std::array<tensor, 2>& gradients() { return gradients_; }

 private:
  std::array<tensor, 2> parameters_, gradients_;
};

/// What an activation does with every number.
enum class elementwise : std::uint8_t { relu, tanh };

/// y = f(x), number by number: a layer without parameters.
template <class Real>
class activation {
 public:
  using tensor = matrix<Real>;
  struct context {
    tensor output;
  };

  explicit activation(elementwise function) : function_(function) {}

  [[nodiscard]] tensor forward(const tensor& x, context& c) const {
    if (function_ == elementwise::relu)
      c.output = x.cwiseMax(Real{0});
    else
      c.output = x.array().tanh();
    return c.output;
  }
  [[nodiscard]] tensor backward(const tensor& gradient, const context& c) const {
    if (function_ == elementwise::relu) return (c.output.array() > Real{0}).select(gradient, Real{0});
    return gradient.array() * (Real{1} - c.output.array().square());
  }
  [[nodiscard]] std::span<tensor> parameters() const { return {}; }
  [[nodiscard]] std::span<tensor> gradients() const { return {}; }

 private:
  elementwise function_;
};

}  // namespace eigen
}  // namespace hetsched
