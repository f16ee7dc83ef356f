// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// A parameter of a layer that this rank holds.
template <class Tensor>
struct held_parameter {
  parameter_id what;
  int direction = 0;
  std::size_t stage = 0;  ///< of this rank's
  std::size_t model = 0;  ///< number among the model's
  Tensor* value = nullptr;
  Tensor* gradient = nullptr;
  tensor_shape shape{};  ///< of both, where they are there
  std::vector<held_piece> pieces{};
  std::vector<strided_runs> owned{};  ///< of its gradient what this rank speaks for (side a)
  bool sharded = false;               ///< the exchange's owned pieces stand for its sum and state
  bool lean = false;                  ///< its gradient is freed between its sum and the next step
  bool freed = false;
  bool gathered = false;  ///< its value is there while its layer is at work
  std::vector<Tensor> state{};
  std::int64_t updates = 0;

  void free_gradient() {
    if (lean && !std::exchange(freed, true)) *gradient = Tensor{};
  }
  template <class Queue>
  void make_gradient(const Queue& q) {
    if (std::exchange(freed, false)) *gradient = make_tensor<Tensor>(shape, q);
  }
};

/// Those of a stage, with the layers' tensors; `layers`: from this number on.
/// Throws: input_error for a layer without a gradient of the same shape per parameter, or of which one is not contiguous.
template <class Tensor, class Layer>
void list_parameters(std::vector<held_parameter<Tensor>>& list, std::span<Layer> layers, int number, std::size_t stage,
                     int direction) {
  for (auto& layer : layers) {
    const std::size_t first = list.size();
    for (Tensor& t : layer.parameters())
      list.push_back({.what = {number, static_cast<int>(list.size() - first)},
                      .direction = direction,
                      .stage = stage,
                      .value = &t,
                      .shape = shape_of(t)});
    const auto refuse = [&](const std::string& what) { throw input_error("layer " + std::to_string(number) + what); };
    std::size_t next = first;
    for (Tensor& g : layer.gradients()) {
      if (next < list.size()) {
        auto& p = list[next];
        const auto which = " " + std::to_string(next - first);
        if (!same_shape(*p.value, g))
          refuse(": parameter" + which + " is of the shape " + extents_text(shape_of(*p.value)) + ", its gradient of " +
                 extents_text(shape_of(g)));
        const auto expect_contiguous = [&](const Tensor& t, const char* what) {
          if (!is_contiguous(t)) refuse_strided("layer " + std::to_string(number) + what + which, shape_of(t));
        };
        expect_contiguous(*p.value, ": parameter");
        expect_contiguous(g, ": gradient");
        p.gradient = &g;
      }
      ++next;
    }
    if (next != list.size())
      refuse(" has " + std::to_string(list.size() - first) + " parameters, but " + std::to_string(next - first) + " gradients");
    ++number;
  }
}

}  // namespace hetsched::detail
