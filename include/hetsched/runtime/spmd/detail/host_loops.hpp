// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// How far apart the elements of a tensor are along its dimensions.
[[nodiscard]] inline std::vector<std::size_t> row_major(const tensor_shape& shape) {
  std::vector<std::size_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

/// Calls visit(place in the shape, places in other tensors) for all elements.
template <class Visit>
void walk(const tensor_shape& shape, const std::vector<std::vector<std::size_t>>& others, Visit visit) {
  std::size_t size = 1;
  for (const auto extent : shape) size *= extent;
  std::vector<std::size_t> index(shape.size()), at(others.size());
  for (std::size_t i = 0; i < size; ++i) {
    visit(i, at.data());
    for (std::size_t d = shape.size(); d-- > 0;) {
      for (std::size_t k = 0; k < others.size(); ++k) at[k] += others[k][d];
      if (++index[d] < shape[d]) break;
      for (std::size_t k = 0; k < others.size(); ++k) at[k] -= others[k][d] * shape[d];
      index[d] = 0;
    }
  }
}

/// The loops of a product on a device's parts, and how far apart the elements of both inputs and of the result are along them; 0
/// where a tensor does not follow a loop.
struct product_loops {
  tensor_shape extents;
  std::vector<std::vector<std::size_t>> strides;
};
template <class Tensor>
[[nodiscard]] product_loops loops_of(const tensor_node& n, const Tensor& a, const Tensor& b, const Tensor& result) {
  product_loops found{tensor_shape(n.loops.size(), 1), {}};
  const auto look = [&](const Tensor& t, const std::vector<int>& follows) {
    const auto shape = shape_of(t);
    const auto own = row_major(shape);
    auto& s = found.strides.emplace_back(n.loops.size(), 0);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      at(found.extents, follows[d]) = shape[d];
      at(s, follows[d]) = own[d];
    }
  };
  look(a, n.input_loops[0]);
  look(b, n.input_loops[1]);
  look(result, n.result_loops);
  return found;
}

}  // namespace hetsched::detail
