// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor_options.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layout/layer_shapes.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

namespace hetsched {

/// A loss: half the squared distance between rows of output and target, a mean over the rows (of the first dimension), which data
/// ranks may have parts of. Requires: tensors of floats or doubles in host memory, contiguous, of one shape.
struct half_squares {
  template <pipeline_tensor Tensor>
  [[nodiscard]] loss_value<Tensor> operator()(const Tensor& output, const Tensor& target) const {
    using traits = tensor_traits<Tensor>;
    detail::require_host_arithmetic<Tensor>();
    if (!detail::same_shape(output, target))
      detail::refuse_shape("the target", detail::shape_of(target), detail::shape_of(output));
    const auto shape = detail::shape_of(output);
    const auto rows = static_cast<typename traits::element>(shape.empty() ? 1 : shape.front());
    loss_value<Tensor> found{.value = 0, .gradient = traits::make(shape)};
    for (std::size_t i = 0, n = detail::elements(output); i < n; ++i) {
      const auto d = traits::data(output)[i] - traits::data(target)[i];
      traits::data(found.gradient)[i] = d / rows;
      found.value += 0.5 * static_cast<double>(d) * static_cast<double>(d) / static_cast<double>(rows);
    }
    return found;
  }
};

/// A training of this process: a rank of the layout is a thread with a trainer, and each calls `step` (trainer, number of the
/// step) so many times. What it returns is a trainer's step(), which may stand among other calls of all ranks. Returns the
/// reports, which all ranks have alike. Other arguments: as make_trainer's, which is what it calls; all ranks' threads call the
/// same make_layer, shape_after and step, at a time.
/// Throws: input_error for a layout that is not sound; as run_on_threads, and with it what the trainer and `step` throw.
/// Example:
///   const auto reports = train_on_threads<Tensor>(make_training_layout(plan), make_layer, {4, 8}, 100,
///                                                 [&](auto& trainer, int) { return trainer.step(inputs, targets, loss); });
template <class Tensor, class MakeLayer, class Step, class Optimizer = sgd>
std::vector<step_report> train_on_threads(const training_layout& layout, MakeLayer&& make_layer, const layer_shapes& shape_after,
                                          int steps, Step&& step, const Optimizer& optimizer = {},
                                          const trainer_options& options = {}) {
  validate(layout);
  std::vector<step_report> reports;
  run_on_threads(thread_communicator<Tensor>::connect(layout.ranks()), [&](auto& comm) {
    auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, optimizer, options);
    for (int n = 0; n < steps; ++n) {
      const step_report report = step(trainer, n);
      if (comm.rank() == 0) reports.push_back(report);
    }
  });
  return reports;
}

}  // namespace hetsched
