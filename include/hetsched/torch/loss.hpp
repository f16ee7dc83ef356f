// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <hetsched/runtime/executor/executor_options.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/torch/tensor.hpp>

namespace hetsched {

/// A loss for the trainer, by torch's autograd. function: (const torch::Tensor& output, const Target&) -> a torch::Tensor of
/// one element, the mean over a microbatch, that depends on the output. Targets may be tensors of any elements.
/// Example:
///   trainer.step(inputs, targets, torch_loss([](const torch::Tensor& y, const torch::Tensor& wanted) {
///     return torch::nn::functional::cross_entropy(y, wanted);
///   }));
template <class Function>
[[nodiscard]] auto torch_loss(Function function) {
  return [function = std::move(function)]<pipeline_tensor Tensor>(const Tensor& output, const auto& target) {
    const torch::AutoGradMode on(true);
    const at::Tensor y = output.detach().requires_grad_();
    const at::Tensor loss = function(y, target);
    auto found = torch::autograd::grad({loss}, {y});
    return loss_value<Tensor>{loss.template item<double>(), Tensor(detail::alone(std::move(found[0])))};
  };
}

}  // namespace hetsched
