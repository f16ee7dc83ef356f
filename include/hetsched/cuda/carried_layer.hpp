// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/trainer_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A tensor made of one cuda_buffer that can be made of a buffer that is there: has shape(), buffer(), also const, and a
/// constructor (const tensor_shape&, cuda_buffer<Api>).
template <class T, class Api>
concept cuda_carried = cuda_api<Api> && requires(T& t, const T& c, const tensor_shape& s, cuda_buffer<Api>&& b) {
  { t.buffer() } -> std::same_as<cuda_buffer<Api>&>;
  { c.buffer() } -> std::same_as<const cuda_buffer<Api>&>;
  T(s, std::move(b));
};

/// The shape of the Tensor in whose memory a Side of this shape lies, for shape_after: rows by rows, of as many bytes.
/// Throws: input_error for a shape without rows, and rows that are no whole number of a Tensor's elements.
/// Example: carried_shape<tensor, bf16_tensor>({rows, 4096}) is {rows, 2048} where a tensor's elements are floats.
template <class Tensor, class Side>
[[nodiscard]] tensor_shape carried_shape(const tensor_shape& shape) {
  constexpr std::size_t wide = sizeof(typename tensor_traits<Tensor>::element);
  if (shape.empty()) throw input_error("a tensor without rows is carried in no other");
  std::size_t bytes = sizeof(typename tensor_traits<Side>::element);
  for (std::size_t k = 1; k < shape.size(); ++k) bytes *= shape[k];
  if (bytes % wide != 0)
    throw input_error("a row of " + std::to_string(bytes) + " bytes is carried in elements of " + std::to_string(wide) +
                      ": expected is a multiple");
  return {shape[0], bytes / wide};
}

/// Lets a layer take and give tensors of other elements than its parameters and gradients have, such as bf16 between floats: as a
/// layer of Tensor it hands on the same memory, and copies nothing. So what travels between stages has the bytes of these
/// elements. Input, Output: cuda_carried tensors, with their tensor_traits, or Tensor itself. The layer has the members of a
/// pipeline_layer or split_layer with these types, and a queue:
///   forward(const Input&, context&, queue) -> Output, backward(const Output& gradient, context&, queue) -> Input, its gradient
/// and parameters and gradients of Tensor. Boundaries have the carried_shape. On hosts packed_layer does this, with a copy.
/// Requires: rows, the first extents, are those of the boundary. Throws: input_error for rows that are no whole number of an
/// input's, or a Tensor's, elements; what the layer throws.
template <class Tensor, class Input, class Output, class Layer, cuda_api Api>
class cuda_carried_layer {
  static_assert(cuda_carried<Tensor, Api> && cuda_carried<Input, Api> && cuda_carried<Output, Api>,
                "tensors need buffer() and a constructor (const tensor_shape&, cuda_buffer<Api>)");
  using queue = cuda_queue<Api>;
  static constexpr bool splits = requires(Layer & l, const Output& g, typename Layer::context& c, const queue& q) {
    { l.backward_input(g, c, q) } -> std::convertible_to<Input>;
    l.backward_weight(g, c, q);
  };

 public:
  struct context {
    typename Layer::context own;
    Input input{};      ///< a view, as is the next
    Output gradient{};  ///< of the output
  };

  /// `input_row`, `output_row`: the extents behind the rows of an Input, and an Output; empty: one.
  explicit cuda_carried_layer(Layer layer, tensor_shape input_row = {}, tensor_shape output_row = {})
      : layer_(std::move(layer)), input_row_(std::move(input_row)), output_row_(std::move(output_row)) {}

  [[nodiscard]] context make_context() { return {.own = detail::make_context(layer_), .input = {}, .gradient = {}}; }
  [[nodiscard]] Tensor forward(const Tensor& x, context& c, const queue& q) {
    return given(layer_.forward(seen(x, c.input, input_row_, q), c.own, q));
  }
  [[nodiscard]] Tensor backward(const Tensor& dy, context& c, const queue& q) {
    return given(layer_.backward(seen(dy, c.gradient, output_row_, q), c.own, q));
  }
  [[nodiscard]] Tensor backward_input(const Tensor& dy, context& c, const queue& q) requires splits {
    return given(layer_.backward_input(seen(dy, c.gradient, output_row_, q), c.own, q));
  }
  void backward_weight(const Tensor& dy, context& c, const queue& q) requires splits {
    layer_.backward_weight(seen(dy, c.gradient, output_row_, q), c.own, q);
  }
  [[nodiscard]] decltype(auto) parameters() { return layer_.parameters(); }
  [[nodiscard]] decltype(auto) gradients() { return layer_.gradients(); }
  [[nodiscard]] auto buffers() { return detail::buffers<Tensor>(layer_); }
  [[nodiscard]] auto parameter_cuts() { return detail::parameter_cuts(layer_); }
  [[nodiscard]] auto parameter_names() { return detail::parameter_names(layer_); }
  [[nodiscard]] auto buffer_names() { return detail::buffer_names(layer_); }
  void parameters_changed(const queue& q) {
    if constexpr (requires { layer_.parameters_changed(q); })
      layer_.parameters_changed(q);
    else if constexpr (requires { layer_.parameters_changed(); })
      q.finish(), layer_.parameters_changed();
  }
  void begin_step(std::int64_t step) {
    if constexpr (requires { layer_.begin_step(step); }) layer_.begin_step(step);
  }
  [[nodiscard]] Layer& layer() { return layer_; }

 private:
  /// The same memory, which stays where it is for as long as the layer may look at it.
  template <class Side>
  [[nodiscard]] static const Side& seen(const Tensor& t, Side& view, const tensor_shape& row, const queue& q) {
    if constexpr (std::same_as<Side, Tensor>) {
      return t;
    } else {
      constexpr std::size_t each = sizeof(typename tensor_traits<Side>::element);
      const auto& b = t.buffer();
      tensor_shape shape{detail::shape_of(t).front()};
      std::size_t rows = each * shape.front();
      for (const auto n : row) rows *= n, shape.push_back(n);
      if (row.empty() && rows > 0) shape.push_back(b.bytes() / rows), rows *= shape.back();
      if (rows != b.bytes())
        throw input_error("what is carried has " + std::to_string(b.bytes()) + " bytes, expected are " + std::to_string(rows));
      view = Side(shape, cuda_buffer<Api>::view(q, b.data(), b.bytes()));
      return view;
    }
  }
  template <class Side>
  [[nodiscard]] static Tensor given(Side&& made) {
    if constexpr (std::same_as<Side, Tensor>)
      return std::move(made);
    else
      return Tensor(carried_shape<Tensor, Side>(detail::shape_of(std::as_const(made))), std::move(made.buffer()));
  }

  Layer layer_;
  tensor_shape input_row_, output_row_;
};

}  // namespace hetsched
