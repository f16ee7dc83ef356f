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

/// Calls a loss, keeps its value, and returns its gradient; see pipeline_executor::step. The output is the loss's own, which may
/// move it or write to it. `room`: for its shape.
template <class Tensor, class Loss, class Target, class Queue>
[[nodiscard]] Tensor gradient_of(const Loss& loss, Tensor&& output, const Target& target, double& value, bool forward_only,
                                 const Queue& q, tensor_shape& room) {
  if constexpr (requires { loss(std::move(output), target, q, value); }) {
    Tensor gradient = loss(std::move(output), target, q, value);
    if (!forward_only) require_contiguous(gradient, "the loss's gradient");
    return gradient;
  } else if constexpr (std::convertible_to<decltype(loss(std::move(output), target)), double>) {
    if (!forward_only) throw input_error("the loss has a value alone, and the schedule needs its gradient");
    q.finish();
    value = loss(std::move(output), target);
    return {};
  } else {
    q.finish();
    room.clear();
    for (const auto extent : tensor_traits<Tensor>::shape(std::as_const(output))) room.push_back(as_size(extent));
    loss_value<Tensor> found = loss(std::move(output), target);
    value = found.value;
    require_handed_over(found.gradient, room, "the loss's gradient");
    return std::move(found.gradient);
  }
}

template <class Loss, class Tensor, class Target, class Queue>
concept enqueued_loss = requires(Loss& loss, Tensor&& output, const Target& target, const Queue& q, double& value) {
  loss(std::move(output), target, q, value);
};

/// A loss with its gradient times a factor.
template <class Tensor, class Loss, class Queue>
struct scaled_loss {
  Loss& loss;
  double factor;
  const Queue& queue;

  template <class Target>
  requires enqueued_loss<Loss, Tensor, Target, Queue> Tensor operator()(Tensor&& output, const Target& target, const Queue& q,
                                                                        double& value) const {
    Tensor gradient = loss(std::move(output), target, q, value);
    require_contiguous(gradient, "the loss's gradient");
    if (factor != 1) scale(gradient, factor, q);
    return gradient;
  }
  template <class Target>
  requires(!enqueued_loss<Loss, Tensor, Target, Queue>) loss_value<Tensor>
  operator()(Tensor&& output, const Target& target) const {
    loss_value<Tensor> found = loss(std::move(output), target);
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
  requires enqueued_loss<Loss, Tensor, Target, Queue> Tensor operator()(Tensor&& output, const Target& target, const Queue& q,
                                                                        double& value) const {
    return loss(std::move(output), target, q, value);
  }
  template <class Target>
  requires(!enqueued_loss<Loss, Tensor, Target, Queue>) double operator()(Tensor&& output, const Target& target) const {
    if constexpr (std::convertible_to<decltype(loss(std::move(output), target)), double>)
      return loss(std::move(output), target);
    else
      return loss(std::move(output), target).value;
  }
};

}  // namespace hetsched::detail
