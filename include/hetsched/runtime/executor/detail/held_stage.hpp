// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer_error.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched::detail {

/// A stage of whatever type with its contexts, so that what runs stages is compiled once for all types.
template <class Tensor, class Queue>
class held_stage {
 public:
  virtual ~held_stage() = default;
  virtual void make_contexts(int count) = 0;
  /// What a computation makes; nothing for a backward_weight. `gradient`: of the output, read by backwards only.
  [[nodiscard]] virtual Tensor compute(action_kind what, const Tensor& input, const Tensor& gradient, int context,
                                       const Queue& q) = 0;
  [[nodiscard]] virtual std::vector<Tensor*> gradients() = 0;  ///< of the parameters
  [[nodiscard]] virtual int layer_under_way() const = 0;
};

template <class Tensor, class Queue, class Stage>
class stage_of final : public held_stage<Tensor, Queue> {
 public:
  explicit stage_of(Stage& stage) : stage_(stage) {}

  void make_contexts(int count) override {
    for (int k = 0; k < count; ++k) contexts_.push_back(make_context(stage_));
  }
  [[nodiscard]] Tensor compute(action_kind what, const Tensor& input, const Tensor& gradient, int context,
                               const Queue& q) override {
    auto& own = at(contexts_, context);
    switch (what) {
      case action_kind::forward:
      case action_kind::recompute:
        return forward<Tensor>(stage_, input, own, q);
      case action_kind::backward:
        return backward<Tensor>(stage_, gradient, own, q);
      case action_kind::backward_input:
        return backward_input<Tensor>(stage_, gradient, own, q);
      default:
        backward_weight<Tensor>(stage_, gradient, own, q);
        return {};
    }
  }
  [[nodiscard]] std::vector<Tensor*> gradients() override {
    std::vector<Tensor*> found;
    for (Tensor& g : stage_.gradients()) found.push_back(&g);
    return found;
  }
  [[nodiscard]] int layer_under_way() const override { return detail::layer_under_way(layers_of(stage_)); }

 private:
  Stage& stage_;
  std::vector<typename Stage::context> contexts_;
};

}  // namespace hetsched::detail
