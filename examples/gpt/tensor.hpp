// SPDX-License-Identifier: Apache-2.0
#pragma once

// Same bits on every run: one thread, one order of summation.
#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#include <hetsched/runtime/eigen.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace gpt {

/// Memory that begins at a multiple of 64 bytes. Eigen's sums begin at the first aligned element, so only with one alignment
/// for all do equal tensors give equal bits.
template <class Real>
struct aligned_allocator {
  using value_type = Real;
  static constexpr std::align_val_t alignment{64};
  aligned_allocator() = default;
  template <class Other>
  explicit aligned_allocator(const aligned_allocator<Other>&) {}
  [[nodiscard]] Real* allocate(std::size_t n) { return static_cast<Real*>(::operator new(n * sizeof(Real), alignment)); }
  void deallocate(Real* p, std::size_t) { ::operator delete(p, alignment); }
  friend bool operator==(const aligned_allocator&, const aligned_allocator&) { return true; }
};

/// Rows x columns, row after row; a new one is zero, a moved-from one empty. Models hetsched::pipeline_tensor.
/// Between layers a row is one token of a microbatch: rows = samples * sequence.
template <class Real>
class tensor {
 public:
  using value_type = Real;

  tensor() = default;
  tensor(std::size_t rows, std::size_t columns) : shape_{rows, columns}, data_(rows * columns) {}
  explicit tensor(const hetsched::tensor_shape& shape) {
    if (shape.size() != 2)
      throw hetsched::input_error("a gpt::tensor has rows and columns, not " + std::to_string(shape.size()) + " extents");
    resize(shape[0], shape[1]);
  }
  tensor(const tensor&) = default;
  tensor& operator=(const tensor&) = default;
  tensor(tensor&& other) noexcept { swap(*this, other); }
  tensor& operator=(tensor&& other) noexcept {
    tensor taken(std::move(other));
    swap(*this, taken);
    return *this;
  }
  ~tensor() = default;
  friend void swap(tensor& a, tensor& b) noexcept {
    std::swap(a.shape_, b.shape_);
    a.data_.swap(b.data_);
  }

  /// Its elements are of any value afterwards. Allocates only if it never was that large.
  void resize(std::size_t rows, std::size_t columns) {
    shape_ = {rows, columns};
    data_.resize(rows * columns);
  }

  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return shape_; }
  [[nodiscard]] std::size_t rows() const { return shape_[0]; }
  [[nodiscard]] std::size_t columns() const { return shape_[1]; }
  [[nodiscard]] std::size_t size() const { return data_.size(); }
  [[nodiscard]] Real* data() { return data_.data(); }
  [[nodiscard]] const Real* data() const { return data_.data(); }
  [[nodiscard]] Real& operator()(std::size_t row, std::size_t column) { return data_[row * shape_[1] + column]; }
  [[nodiscard]] Real operator()(std::size_t row, std::size_t column) const { return data_[row * shape_[1] + column]; }
  friend bool operator==(const tensor&, const tensor&) = default;

 private:
  std::array<std::size_t, 2> shape_{};
  std::vector<Real, aligned_allocator<Real>> data_;
};

using hetsched::eigen::map, hetsched::eigen::matrix;

/// The numbers of a tensor with as many rows as `like` and these columns. Contexts keep where an input's numbers are, rather
/// than the tensor: they stay where they are when the tensor or the context moves.
template <class Real>
[[nodiscard]] Eigen::Map<const matrix<Real>> map(const Real* data, const tensor<Real>& like, std::size_t columns) {
  return {data, static_cast<Eigen::Index>(like.rows()), static_cast<Eigen::Index>(columns)};
}

template <class Real>
using tensor_list = std::vector<std::reference_wrapper<tensor<Real>>>;

/// The lists one after the other.
template <class Real>
[[nodiscard]] tensor_list<Real> join(tensor_list<Real> first, const tensor_list<Real>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace gpt
