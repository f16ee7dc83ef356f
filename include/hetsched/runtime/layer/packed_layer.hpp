// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layer/detail/packed_rows.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Whether a tensor's elements have gradients: not integers, such as masks and tokens. May be specialised for tensors of numbers
/// that nobody differentiates by.
template <class T>
inline constexpr bool has_gradient = !std::is_integral_v<typename tensor_traits<T>::element>;

namespace detail {

template <class Parts>
inline constexpr bool is_part_list = false;
template <class T>
inline constexpr bool is_part_list<std::vector<T>> = pipeline_tensor<T>&& on_host<T>;
template <class... Ts>
inline constexpr bool is_part_list<std::tuple<Ts...>> = sizeof...(Ts) > 0 && (... && (pipeline_tensor<Ts> && on_host<Ts>));
template <class A, class B>
inline constexpr bool is_part_list<std::pair<A, B>> = is_part_list<std::tuple<A, B>>;

}  // namespace detail

/// What crosses a boundary as several tensors: a std::tuple or std::pair of tensors of any types, or a std::vector of one type,
/// as many as there are; all in host memory.
template <class Parts>
concept tensor_parts = detail::is_part_list<Parts>;

namespace detail {

/// body(tensor) for each part.
template <class Parts, class Body>
void for_each_part(Parts& parts, Body&& body) {
  if constexpr (requires { parts.size(); })
    for (auto& t : parts) body(t);
  else
    std::apply([&](auto&... t) { (body(t), ...); }, parts);
}

/// The elements of a row.
template <pipeline_tensor Tensor>
[[nodiscard]] std::size_t packed_row(std::span<const packed_part> parts, std::size_t rows, std::string_view what) {
  constexpr std::size_t each = sizeof(typename tensor_traits<Tensor>::element);
  return (packed_row_bytes(parts, rows, what) + each - 1) / each;
}

/// With Gradient, parts without are left out. `rows`: of each part; none: as many as the first has. `row`: the elements of a row
/// of the packed tensor; 0: as many as the parts need. Throws: input_error for parts that do not fit.
template <pipeline_tensor Tensor, bool Gradient, tensor_parts Parts>
[[nodiscard]] Tensor packed(const Parts& parts, std::optional<std::size_t> rows, std::size_t row, std::string_view what) {
  using traits = tensor_traits<Tensor>;
  std::vector<packed_part> sent;
  for_each_part(parts, [&]<class T>(const T& t) {
    auto& p = sent.emplace_back();
    if constexpr (!Gradient || has_gradient<T>) {
      require_contiguous(t, "part " + std::to_string(sent.size() - 1) + " of " + std::string(what));
      p.shape = shape_of(t);
      p.element_bytes = sizeof(typename tensor_traits<T>::element);
      if (elements(t) > 0) p.from = reinterpret_cast<const std::byte*>(tensor_traits<T>::data(t));
      if (p.shape.empty())
        throw input_error("part " + std::to_string(sent.size() - 1) + " of " + std::string(what) + " has no rows");
      if (!rows) rows = p.shape.front();
    }
  });
  if (!rows) throw input_error(std::string(what) + " has no parts");
  const std::size_t needed = packed_row<Tensor>(sent, *rows, what);
  if (row == 0) row = needed;
  if (needed > row)
    throw input_error("the parts of " + std::string(what) + " take " + std::to_string(needed) +
                      " elements a row, more than the boundary has room for, " + std::to_string(row));
  Tensor t = traits::make({*rows, row});
  if (elements(t) > 0)
    write_packed_rows(sent, reinterpret_cast<std::byte*>(traits::data(t)), *rows, row * sizeof(typename traits::element));
  return t;
}

/// Parts out of a packed tensor.
template <tensor_parts Parts>
struct unpacked {
  Parts parts{};
  std::vector<tensor_shape> shapes{};  ///< of those parts that were in it
};

/// Parts keep their memory where their shapes stay. With Gradient, parts without are passed over.
template <bool Gradient, pipeline_tensor Tensor, tensor_parts Parts>
void unpack(const Tensor& t, unpacked<Parts>& to, std::string_view what) {
  using traits = tensor_traits<Tensor>;
  const auto shape = shape_of(t);
  if (shape.size() != 2 || elements(t) == 0)
    throw input_error(std::string(what) + " is of the shape " + extents_text(shape) + ", expected are rows of packed parts");
  constexpr bool any_number = requires { to.parts.resize(1); };
  std::vector<std::size_t> element_bytes;
  if constexpr (any_number)
    element_bytes.push_back(sizeof(typename tensor_traits<typename Parts::value_type>::element));
  else
    for_each_part(to.parts, [&]<class T>(T&) { element_bytes.push_back(sizeof(typename tensor_traits<T>::element)); });
  const auto* const from = reinterpret_cast<const std::byte*>(traits::data(t));
  const std::size_t row_bytes = shape[1] * sizeof(typename traits::element);
  const auto shapes = packed_shapes(from, shape[0], row_bytes, element_bytes, any_number, what);
  if constexpr (any_number) to.parts.resize(shapes.size());
  to.shapes.resize(shapes.size());
  std::vector<packed_part> taken;
  for_each_part(to.parts, [&]<class T>(T& part) {
    const auto i = taken.size();
    auto& p = taken.emplace_back();
    p.shape = shapes[i];
    p.element_bytes = sizeof(typename tensor_traits<T>::element);
    if constexpr (!Gradient || has_gradient<T>) {
      if (shapes[i].empty()) throw input_error("part " + std::to_string(i) + " of " + std::string(what) + " has been left out");
      if (to.shapes[i] != shapes[i]) {
        part = tensor_traits<T>::make(shapes[i]);
        to.shapes[i] = shapes[i];
      }
      if (elements(part) > 0) p.to = reinterpret_cast<std::byte*>(tensor_traits<T>::data(part));
    }
  });
  read_packed_rows(taken, from, shape[0], row_bytes);
}

template <class Side, class Tensor>
concept packed_side = std::same_as<Side, Tensor> || tensor_parts<Side>;

/// What a packed_layer keeps of an input or a gradient; nothing if it is one tensor.
template <class Tensor, class Side>
struct unpacked_side {
  using type = unpacked<Side>;
};
template <class Tensor>
struct unpacked_side<Tensor, Tensor> {
  struct type {};
};

}  // namespace detail

/// How the parts of a boundary travel, for shape_after: packed in one tensor, and back those that have gradients. `shapes`: one
/// of each part, the longest where they change; the first extent of all is that of the rows (samples, or tokens).
/// Throws: input_error for another number of shapes, or of rows.
/// Example: packed_shape<tensor, std::tuple<tensor, mask>>({{8, 64, 512}, {8, 64}})
template <pipeline_tensor Tensor, tensor_parts Parts>
[[nodiscard]] boundary_shape packed_shape(const std::vector<tensor_shape>& shapes) {
  std::vector<detail::packed_part> parts, gradients;
  const auto add = [&]<class T>(std::type_identity<T>) {
    if (parts.size() == shapes.size()) return;
    const auto& shape = shapes[parts.size()];
    if (shape.empty()) throw input_error("part " + std::to_string(parts.size()) + " of the boundary has no rows");
    constexpr std::size_t bytes = sizeof(typename tensor_traits<T>::element);
    parts.push_back({.shape = shape, .element_bytes = bytes});
    gradients.push_back({.shape = has_gradient<T> ? shape : tensor_shape{}, .element_bytes = bytes});
  };
  std::size_t expected = shapes.size();
  if constexpr (requires { typename Parts::value_type; }) {
    for (std::size_t i = 0; i < shapes.size(); ++i) add(std::type_identity<typename Parts::value_type>{});
  } else {
    expected = std::tuple_size_v<Parts>;
    [&]<std::size_t... I>(std::index_sequence<I...>) { (add(std::type_identity<std::tuple_element_t<I, Parts>>{}), ...); }
    (std::make_index_sequence<std::tuple_size_v<Parts>>{});
  }
  if (expected != shapes.size() || shapes.empty())
    throw input_error("shapes of " + std::to_string(shapes.size()) + " parts, expected are " +
                      std::to_string(std::max(expected, std::size_t{1})));
  const std::size_t rows = shapes.front().front();
  return {{rows, detail::packed_row<Tensor>(parts, rows, "the boundary")},
          {rows, detail::packed_row<Tensor>(gradients, rows, "the boundary")}};
}

/// What a packed_layer has room for, in elements of a row: where shapes change, those of the boundaries' packed_shape.
/// 0: as much as there is, where they do not.
struct packed_room {
  std::size_t output = 0;          ///< packed_shape(...).output[1], of what the layer gives
  std::size_t input_gradient = 0;  ///< packed_shape(...).gradient[1], of what it takes
};

/// Lets a layer take and give several tensors where the runtime hands on one: as a layer of Tensor, it unpacks what comes and
/// packs what leaves. Input, Output: tensor_parts, or Tensor itself. The layer has the members of a pipeline_layer or split_layer
/// with these types:
///   forward(const Input&, context&) -> Output, backward(const Output& gradient, context&) -> Input, its gradient, ...
/// and parameters and gradients of Tensor. All parts have the same first extent, the rows, over which data ranks share them.
/// What backward gets and returns in place of a part without gradients (has_gradient) is neither looked at nor sent. Shapes may
/// change from step to step, and from one microbatch to another, within the room that the boundary has; not among the data ranks
/// of a stage in one microbatch, which is refused. Costs a copy of all parts at either end of the layer, between layers of one
/// stage, too. Requires: parts, like Tensor, are in host memory. Throws: input_error for an input that is not packed of such
/// parts, and for parts that have not the same rows, are not contiguous or do not fit.
template <pipeline_tensor Tensor, detail::packed_side<Tensor> Input, detail::packed_side<Tensor> Output, class Layer>
class packed_layer {
  static_assert(detail::on_host<Tensor>, "parts are packed in host memory");
  static_assert(detail::has_context<Layer>, "the layer has no member type `context` that can be made");
  static_assert(
      requires(Layer & l, const Input& x, typename Layer::context& c) {
        { l.forward(x, c) } -> std::convertible_to<Output>;
      },
      "the layer has no forward(const Input&, context&) that returns an Output");
  static_assert(
      requires(Layer & l, const Output& g, typename Layer::context& c) {
        { l.backward(g, c) } -> std::convertible_to<Input>;
      },
      "the layer has no backward(const Output&, context&) that returns an Input, its gradient");
  static constexpr bool takes_parts = !std::same_as<Input, Tensor>, gives_parts = !std::same_as<Output, Tensor>;
  static constexpr bool splits = requires(Layer & l, const Output& g, typename Layer::context& c) {
    { l.backward_input(g, c) } -> std::convertible_to<Input>;
    l.backward_weight(g, c);
  };

 public:
  struct context {
    typename Layer::context own;
    typename detail::unpacked_side<Tensor, Input>::type input{};
    typename detail::unpacked_side<Tensor, Output>::type gradient{};
    std::size_t rows = 0;  ///< of the packed input
  };

  explicit packed_layer(Layer layer, packed_room room = {}) : layer_(std::move(layer)), room_(room) {}

  [[nodiscard]] context make_context() { return {.own = detail::make_context(layer_)}; }
  [[nodiscard]] Tensor forward(const Tensor& input, context& c) {
    if constexpr (takes_parts) {
      detail::unpack<false>(input, c.input, "the input");
      c.rows = detail::shape_of(input)[0];
      return given(layer_.forward(c.input.parts, c.own));
    } else {
      return given(layer_.forward(input, c.own));
    }
  }
  [[nodiscard]] Tensor backward(const Tensor& gradient, context& c) {
    return returned(layer_.backward(unpacked_gradient(gradient, c), c.own), c);
  }
  [[nodiscard]] Tensor backward_input(const Tensor& gradient, context& c) requires splits {
    return returned(layer_.backward_input(unpacked_gradient(gradient, c), c.own), c);
  }
  void backward_weight(const Tensor& gradient, context& c) requires splits {
    if constexpr (gives_parts)
      layer_.backward_weight(c.gradient.parts, c.own);
    else
      layer_.backward_weight(gradient, c.own);
  }
  [[nodiscard]] decltype(auto) parameters() { return layer_.parameters(); }
  [[nodiscard]] decltype(auto) gradients() { return layer_.gradients(); }
  [[nodiscard]] auto buffers() { return detail::buffers<Tensor>(layer_); }
  [[nodiscard]] auto parameter_cuts() { return detail::parameter_cuts(layer_); }
  [[nodiscard]] auto parameter_names() { return detail::parameter_names(layer_); }
  [[nodiscard]] auto buffer_names() { return detail::buffer_names(layer_); }
  void parameters_changed() {
    if constexpr (requires { layer_.parameters_changed(); }) layer_.parameters_changed();
  }
  void begin_step(std::int64_t step) {
    if constexpr (requires { layer_.begin_step(step); }) layer_.begin_step(step);
  }
  [[nodiscard]] bool own_gradient_shape() const { return takes_parts; }
  [[nodiscard]] Layer& layer() { return layer_; }

 private:
  [[nodiscard]] Tensor given(Output&& output) {
    if constexpr (gives_parts)
      return detail::packed<Tensor, false>(output, std::nullopt, room_.output, "the output");
    else
      return std::move(output);
  }
  [[nodiscard]] const Output& unpacked_gradient(const Tensor& gradient, context& c) {
    if constexpr (gives_parts) {
      detail::unpack<true>(gradient, c.gradient, "the output's gradient");
      return c.gradient.parts;
    } else {
      return gradient;
    }
  }
  [[nodiscard]] Tensor returned(Input&& gradient, context& c) {
    if constexpr (takes_parts)
      return detail::packed<Tensor, true>(gradient, c.rows, room_.input_gradient, "the input's gradient");
    else
      return std::move(gradient);
  }

  Layer layer_;
  packed_room room_;
};

}  // namespace hetsched
