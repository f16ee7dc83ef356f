// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>

#include <hetsched/cuda/carried_layer.hpp>

#include <gpt_cuda/operations.hpp>
#include <gpt_cuda/tensor.hpp>

namespace gpt_cuda {

/// A layer of floats that takes and gives bf16 numbers, or floats, on each side. What comes in is widened, and kept for the
/// layer; what goes out is rounded.
template <class Api, class Input, class Output, class Layer>
class rounded_sides {
  using queue = hetsched::cuda_queue<Api>;

 public:
  struct context {
    typename Layer::context own;
    tensor<Api> x, dy;
  };
  explicit rounded_sides(Layer layer) : layer_(std::move(layer)) {}

  Output forward(const Input& x, context& c, const queue& q) {
    return given<Output>(q, layer_.forward(wide(q, x, c.x), c.own, q));
  }
  Input backward_input(const Output& dy, context& c, const queue& q) {
    return given<Input>(q, layer_.backward_input(wide(q, dy, c.dy), c.own, q));
  }
  void backward_weight(const Output& dy, context& c, const queue& q) {
    layer_.backward_weight(std::same_as<Output, tensor<Api>> ? wide(q, dy, c.dy) : c.dy, c.own, q);
    c.dy = {};
  }
  Input backward(const Output& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }
  decltype(auto) parameters() { return layer_.parameters(); }
  decltype(auto) gradients() { return layer_.gradients(); }
  decltype(auto) parameter_cuts() const { return layer_.parameter_cuts(); }
  void parameters_changed(const queue& q) { layer_.parameters_changed(q); }

 private:
  static const tensor<Api>& wide(const queue&, const tensor<Api>& t, tensor<Api>&) { return t; }
  static const tensor<Api>& wide(const queue& q, const halves<Api>& t, tensor<Api>& room) {
    room = tensor<Api>(t.shape()[0], t.shape()[1], q);
    each(q, t.size(), widen{}, in(t), out(room));
    return room;
  }
  template <class To>
  static To given(const queue& q, tensor<Api> t) {
    if constexpr (std::same_as<To, tensor<Api>>) {
      return t;
    } else {
      To made(t.shape()[0], t.shape()[1], q);
      each(q, t.size(), round_to_bf16{}, in(t), out(made));
      return made;
    }
  }

  Layer layer_;
};

/// As a layer of floats whose memory on these sides is of bf16 numbers, half as much.
template <class Input, class Output, class Api, class Layer>
[[nodiscard]] any_layer<Api> with_sides(Layer layer) {
  using sides = rounded_sides<Api, Input, Output, Layer>;
  return hetsched::cuda_carried_layer<tensor<Api>, Input, Output, sides, Api>(sides(std::move(layer)));
}

}  // namespace gpt_cuda
