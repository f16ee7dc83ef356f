// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_axis_test.cpp.

#include <cstddef>
#include <numeric>
#include <span>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

template <class Tensor>
[[nodiscard]] std::size_t elements_in_buffer(const Tensor& t) {
  using traits = tensor_traits<Tensor>;
  return traits::buffer(t).bytes() / sizeof(typename traits::element);
}

/// Whether tensors have the sizes that a collective asks for, of one rank of an axis. Throws: input_error.
template <class Tensor>
struct axis_sizes {
  int rank = 0, size = 1;

  /// Parts of one size.
  void expect_parts(const Tensor& one, const Tensor& all) const {
    const auto part = elements_in_buffer(one), whole = elements_in_buffer(all);
    if (whole != part * as_size(size))
      throw input_error(std::to_string(whole) + " elements are not those of " + std::to_string(size) + " ranks with " +
                        std::to_string(part));
  }
  void expect_sum(const Tensor& all, std::span<const std::size_t> counts) const {
    const auto sum = std::accumulate(counts.begin(), counts.end(), std::size_t{0}), whole = elements_in_buffer(all);
    if (counts.size() != as_size(size) || sum != whole)
      throw input_error(std::to_string(whole) + " elements are not those of " + std::to_string(counts.size()) + " parts with " +
                        std::to_string(sum) + ", for " + std::to_string(size) + " ranks");
  }
  void expect_parts(const Tensor& one, const Tensor& all, std::span<const std::size_t> counts) const {
    expect_sum(all, counts);
    if (const auto own = at(counts, rank); own != elements_in_buffer(one))
      throw input_error(std::to_string(elements_in_buffer(one)) + " elements are not part " + std::to_string(rank) + " with " +
                        std::to_string(own));
  }
  void expect_root(int root) const {
    if (root < 0 || root >= size) throw input_error("a broadcast from rank " + std::to_string(root) + " of an axis");
  }
};

}  // namespace hetsched::detail
