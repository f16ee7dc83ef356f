// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include <hetsched/runtime/eigen.hpp>
#include <hetsched/runtime/spmd/detail/host_loops.hpp>
#include <hetsched/runtime/spmd/host_kernels.hpp>
#include <hetsched/runtime/spmd/spmd_run.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// host_kernels whose matmuls are Eigen's products: sums are in another order, so results differ by rounding. Belongs to
/// component eigen. Throws: input_error as host_kernels. Complexity: as host_kernels.
struct eigen_kernels {
  host_kernels others = {};

  template <pipeline_tensor Tensor>
  void operator()(const spmd_call& call, std::span<const Tensor* const> in, Tensor& result) const {
    if (call.node.op == "matmul")
      multiply(call.node, *in[0], *in[1], result);
    else
      others(call, in, result);
  }

 private:
  template <class Tensor>
  static void multiply(const tensor_node& n, const Tensor& a, const Tensor& b, Tensor& result) {
    using traits = tensor_traits<Tensor>;
    using strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    using matrix = eigen::matrix<typename traits::element>;
    const auto all = detail::loops_of(n, a, b, result);
    auto outer = all.extents;
    // The longest loop of each kind is a side of the matrices; all others go round them.
    struct side {
      std::size_t extent = 1;
      std::array<std::size_t, 3> strides = {0, 0, 0};
    };
    const auto longest = [&](bool in_a, bool in_b, bool in_result) {
      side found;
      std::size_t taken = outer.size();
      for (std::size_t d = 0; d < outer.size(); ++d)
        if (outer[d] > found.extent && (all.strides[0][d] > 0) == in_a && (all.strides[1][d] > 0) == in_b &&
            (all.strides[2][d] > 0) == in_result) {
          found = {outer[d], {all.strides[0][d], all.strides[1][d], all.strides[2][d]}};
          taken = d;
        }
      if (taken < outer.size()) outer[taken] = 1;
      return found;
    };
    const auto rows = longest(true, false, true), columns = longest(false, true, true), sum = longest(true, true, false);
    const auto index = [](std::size_t i) { return static_cast<Eigen::Index>(i); };
    const auto view = [&](auto* at, std::size_t tensor, const side& down, const side& across) {
      return Eigen::Map<std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(at)>>, const matrix, matrix>,
                        Eigen::Unaligned, strides>(at, index(down.extent), index(across.extent),
                                                   strides(index(down.strides[tensor]), index(across.strides[tensor])));
    };
    auto* const out = traits::data(result);
    const auto *x = traits::data(a), *y = traits::data(b);
    std::fill(out, out + detail::elements(result), typename traits::element{0});
    detail::walk(outer, all.strides, [&](std::size_t, const std::size_t* at) {
      view(out + at[2], 2, rows, columns).noalias() += view(x + at[0], 0, rows, sum) * view(y + at[1], 1, sum, columns);
    });
  }
};

}  // namespace hetsched
