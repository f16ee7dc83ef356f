// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::test {

/// One number, without memory of its own.
struct small_tensor {
  using value_type = double;
  small_tensor() = default;
  explicit small_tensor(const tensor_shape&) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {1}; }
  double* data() { return &value; }
  const double* data() const { return &value; }
  double value = 0;
};

/// y = x; the gradient of its only parameter is the sum of what goes back. May do something before.
struct small_layer {
  struct context {};
  small_tensor forward(const small_tensor& x, context&) {
    if (on_forward) on_forward();
    return x;
  }
  small_tensor backward(const small_tensor& dy, context&) {
    if (on_backward) on_backward();
    sum[0].value += dy.value;
    return dy;
  }
  std::array<small_tensor, 1>& parameters() { return parameter; }
  std::array<small_tensor, 1>& gradients() { return sum; }
  std::function<void()> on_forward, on_backward;
  std::array<small_tensor, 1> parameter, sum;
};

}  // namespace hetsched::test
