// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <concepts>
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
    Tensor gradient = loss(output, target, q, value);
    if (!forward_only) require_contiguous(gradient, "the loss's gradient");
    return gradient;
  } else if constexpr (std::convertible_to<decltype(loss(output, target)), double>) {
    if (!forward_only) throw input_error("the loss has a value alone, and the schedule needs its gradient");
    q.finish();
    value = loss(output, target);
    return {};
  } else {
    q.finish();
    loss_value<Tensor> found = loss(output, target);
    value = found.value;
    if (!same_shape(output, found.gradient)) refuse_shape("the loss's gradient", shape_of(found.gradient), shape_of(output));
    require_contiguous(found.gradient, "the loss's gradient");
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
    require_contiguous(gradient, "the loss's gradient");
    if (factor != 1) scale(gradient, factor, q);
    return gradient;
  }
  template <class Target>
  requires(!enqueued_loss<Loss, Tensor, Target, Queue>) loss_value<Tensor>
  operator()(const Tensor& output, const Target& target) const {
    loss_value<Tensor> found = loss(output, target);
    require_contiguous(found.gradient, "the loss's gradient");
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
