// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/device/device_backend_test.cpp.

#include <cstdint>

#include <hetsched/runtime/layer/layer.hpp>

// Layers that take no queue find everything done, and have done everything when they return.
namespace hetsched::detail {

template <class Tensor, class L, class Queue>
[[nodiscard]] Tensor forward(L& layer, const Tensor& input, typename L::context& c, const Queue& q) {
  if constexpr (requires { layer.forward(input, c, q); }) {
    return layer.forward(input, c, q);
  } else {
    q.finish();
    return layer.forward(input, c);
  }
}
template <class Tensor, class L, class Queue>
[[nodiscard]] Tensor backward(L& layer, const Tensor& gradient, typename L::context& c, const Queue& q) {
  if constexpr (requires { layer.backward(gradient, c, q); }) {
    return layer.backward(gradient, c, q);
  } else {
    q.finish();
    return layer.backward(gradient, c);
  }
}
template <class Tensor, class L, class Queue>
[[nodiscard]] Tensor backward_input(L& layer, const Tensor& gradient, typename L::context& c, const Queue& q) {
  if constexpr (requires { layer.backward_input(gradient, c, q); }) {
    return layer.backward_input(gradient, c, q);
  } else if constexpr (requires { layer.backward_input(gradient, c); }) {
    q.finish();
    return layer.backward_input(gradient, c);
  } else {
    return backward<Tensor>(layer, gradient, c, q);
  }
}
template <class Tensor, class L, class Queue>
void backward_weight(L& layer, const Tensor& gradient, typename L::context& c, const Queue& q) {
  if constexpr (requires { layer.backward_weight(gradient, c, q); }) {
    layer.backward_weight(gradient, c, q);
  } else if constexpr (requires { layer.backward_weight(gradient, c); }) {
    q.finish();
    layer.backward_weight(gradient, c);
  }
}
template <class L, class Queue>
void parameters_changed(L& layer, const Queue& q) {
  if constexpr (requires { layer.parameters_changed(q); }) {
    layer.parameters_changed(q);
  } else if constexpr (requires { layer.parameters_changed(); }) {
    q.finish();
    layer.parameters_changed();
  }
}

template <class L>
void begin_step(L& layer, std::int64_t step) {
  if constexpr (requires { layer.begin_step(step); }) layer.begin_step(step);
}

/// A stage that a backend has wrapped has a member stage().
template <class Stage>
[[nodiscard]] auto& layers_of(Stage& s) {
  if constexpr (requires { s.stage(); })
    return s.stage();
  else
    return s;
}

}  // namespace hetsched::detail
