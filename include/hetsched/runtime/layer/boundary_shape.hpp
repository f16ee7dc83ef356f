// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <utility>

#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// What travels behind a layer, for a whole microbatch; any tensor_shape is one.
struct boundary_shape {
  boundary_shape(tensor_shape of_output, tensor_shape of_gradient = {})
      : output(std::move(of_output)), gradient(std::move(of_gradient)) {}
  tensor_shape output;
  tensor_shape gradient;  ///< empty: of the output's shape
  friend bool operator==(const boundary_shape&, const boundary_shape&) = default;
};

}  // namespace hetsched
