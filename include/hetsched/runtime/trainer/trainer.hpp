// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/layer_shapes.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/pipeline_trainer.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

namespace hetsched {

namespace detail {

/// What a call returns that does not compile, so that there are no errors but its own.
struct anything {
  template <class... A>
  double step(A&&...);
};

}  // namespace detail

/// The trainer of what make_layer makes; arguments are those of pipeline_trainer's constructor.
/// Example:
///   run_on_threads(thread_communicator<Tensor>::connect(layout.ranks()), [&](auto& comm) {
///     auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///     for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
///   });
template <class Tensor, class MakeLayer, class Communicator, class Optimizer, device_backend Backend = host_backend,
          class Stager = no_stager>
[[nodiscard]] auto make_trainer(const training_layout& layout, MakeLayer&& make_layer, const layer_shapes& shape_after,
                                Communicator comm, Optimizer optimizer, trainer_options options = {}, Backend backend = {},
                                Stager stager = {}) {
  // What is wrong with the tensor or the communicator is told here, once.
  if constexpr (!pipeline_tensor<Tensor>) {
    detail::require_tensor<Tensor>();
    return detail::anything();
  } else if constexpr (!communicator<Communicator, Tensor>) {
    detail::require_communicator<Communicator, Tensor>();
    return detail::anything();
  } else {
    using made = typename decltype([&] {
      using group_type = stage_group<Tensor, Communicator>;
      if constexpr (requires(const group_type& g) { make_layer(0, g); })
        return std::type_identity<std::remove_cvref_t<decltype(make_layer(0, std::declval<const group_type&>()))>>{};
      else
        return std::type_identity<std::remove_cvref_t<decltype(make_layer(0))>>{};
    }())::type;
    return pipeline_trainer<Tensor, made, Communicator, Optimizer, Backend, Stager>(
        layout, make_layer, shape_after, std::move(comm), std::move(optimizer), std::move(options), std::move(backend),
        std::move(stager));
  }
}

}  // namespace hetsched
