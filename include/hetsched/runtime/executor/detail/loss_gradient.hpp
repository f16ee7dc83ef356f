// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <concepts>
#include <string>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/executor/executor_options.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// Calls a loss, keeps its value, and returns its gradient; see pipeline_executor::step.
template <class Tensor, class Loss, class Target, class Queue>
[[nodiscard]] Tensor gradient_of(const Loss& loss, const Tensor& output, const Target& target, double& value, bool forward_only,
                                 const Queue& q) {
  if constexpr (requires { loss(output, target, q, value); }) {
    return loss(output, target, q, value);
  } else if constexpr (std::convertible_to<decltype(loss(output, target)), double>) {
    if (!forward_only) throw input_error("the loss has a value alone, and the schedule needs its gradient");
    q.finish();
    value = loss(output, target);
    return {};
  } else {
    q.finish();
    loss_value<Tensor> found = loss(output, target);
    value = found.value;
    if (!same_shape(output, found.gradient))
      throw input_error("the loss returned a gradient of another shape than the output has: " +
                        std::to_string(elements(found.gradient)) + " elements, not " + std::to_string(elements(output)));
    return std::move(found.gradient);
  }
}

template <class Loss, class Tensor, class Target, class Queue>
concept enqueued_loss = requires(Loss& loss, const Tensor& output, const Target& target, const Queue& q, double& value) {
  loss(output, target, q, value);
};

/// A loss with its gradient times a factor.
template <class Tensor, class Loss, class Queue>
struct scaled_loss {
  Loss& loss;
  double factor;
  const Queue& queue;

  template <class Target>
  requires enqueued_loss<Loss, Tensor, Target, Queue> Tensor operator()(const Tensor& output, const Target& target,
                                                                        const Queue& q, double& value) const {
    Tensor gradient = loss(output, target, q, value);
    if (factor != 1) scale(gradient, factor, q);
    return gradient;
  }
  template <class Target>
  requires(!enqueued_loss<Loss, Tensor, Target, Queue>) loss_value<Tensor>
  operator()(const Tensor& output, const Target& target) const {
    loss_value<Tensor> found = loss(output, target);
    if (factor != 1) scale(found.gradient, factor, queue);
    return found;
  }
};

/// A loss for forwards alone.
template <class Tensor, class Loss, class Queue>
struct loss_value_alone {
  Loss& loss;

  template <class Target>
  requires enqueued_loss<Loss, Tensor, Target, Queue> Tensor operator()(const Tensor& output, const Target& target,
                                                                        const Queue& q, double& value) const {
    return loss(output, target, q, value);
  }
  template <class Target>
  requires(!enqueued_loss<Loss, Tensor, Target, Queue>) double operator()(const Tensor& output, const Target& target) const {
    if constexpr (std::convertible_to<decltype(loss(output, target)), double>)
      return loss(output, target);
    else
      return loss(output, target).value;
  }
};

}  // namespace hetsched::detail
