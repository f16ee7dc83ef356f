// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <iterator>
#include <span>
#include <type_traits>
#include <vector>

#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/layer/tensor_name.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// A range returned by value, R, that its elements end with: a container, or a view that owns one. Views that own can only be
/// moved (but for single_view, which is not told apart). A range of std::reference_wrapper, or of anything else that converts to
/// Tensor&, owns none.
template <class R, class Tensor>
concept owning_temporary = !std::is_reference_v<R> && requires(R & r) {
  requires std::is_lvalue_reference_v<decltype(*std::begin(r))>;
  requires std::derived_from<std::remove_cvref_t<decltype(*std::begin(r))>, Tensor>;
}
&&!std::ranges::enable_borrowed_range<R> && !(std::ranges::enable_view<R> && std::copyable<R>);

template <class R, class Tensor>
concept tensor_range = !owning_temporary<R, Tensor> && requires(R && r) {
  { *std::begin(r) } -> std::convertible_to<Tensor&>;
  std::end(r);
};

template <class L>
concept has_context = requires {
  typename L::context;
}
&&(std::default_initializable<typename L::context> || requires(L & layer) {
  { layer.make_context() } -> std::same_as<typename L::context>;
});

template <class L, class Tensor, class Queue>
concept has_forward = requires(L& layer, const Tensor& input, typename L::context& c) {
  { layer.forward(input, c) } -> std::convertible_to<Tensor>;
}
|| requires(L& layer, const Tensor& input, typename L::context& c, const Queue& q) {
  { layer.forward(input, c, q) } -> std::convertible_to<Tensor>;
};
template <class L, class Tensor, class Queue>
concept has_backward = requires(L& layer, const Tensor& gradient, typename L::context& c) {
  { layer.backward(gradient, c) } -> std::convertible_to<Tensor>;
}
|| requires(L& layer, const Tensor& gradient, typename L::context& c, const Queue& q) {
  { layer.backward(gradient, c, q) } -> std::convertible_to<Tensor>;
};
template <class L, class Tensor, class Queue>
concept has_halves = requires(L& layer, const Tensor& gradient, typename L::context& c) {
  { layer.backward_input(gradient, c) } -> std::convertible_to<Tensor>;
  layer.backward_weight(gradient, c);
}
|| requires(L& layer, const Tensor& gradient, typename L::context& c, const Queue& q) {
  { layer.backward_input(gradient, c, q) } -> std::convertible_to<Tensor>;
  layer.backward_weight(gradient, c, q);
};
template <class L, class Tensor>
concept has_parameters = requires(L& layer) {
  { layer.parameters() } -> tensor_range<Tensor>;
};
template <class L, class Tensor>
concept has_gradients = requires(L& layer) {
  { layer.gradients() } -> tensor_range<Tensor>;
};

}  // namespace detail

/// A user's layer; a whole stage is one, too.
///   context                     type; keeps what one microbatch needs between its forward and its backward
///   forward(const Tensor&, context&)
///                               -> Tensor, the output
///   backward(const Tensor&, context&)
///                               -> Tensor: from the output's gradient the input's; adds to the parameters' gradients
///   parameters(), gradients()   ranges of Tensor&, one gradient of the same shape per parameter: references to containers,
///   views,
///                               spans or lists of std::reference_wrapper, as references to the tensors are kept
/// forward and backward, the two halves of a split_layer, and parameters_changed, may take the queue of their rank as a third
/// argument. They enqueue their work there and do not wait for it. Where the rank computes on a device, a layer without is called
/// when all work before it has been done, and has done its own when it returns.
/// Optional: parameter_cuts() -> a range of parameter_cut, one per parameter, where ranks of a tensor axis share them;
/// buffers() -> a range of Tensor& that are kept with checkpoints and not trained, such as running means: one rank writes what it
/// has, all that hold the layer read it, so they are to be alike or to make do with that; parameters_changed(), for what a layer
/// makes of its parameters, called when they have been updated or loaded; begin_step(std::int64_t), called before a step's first
/// forward with its number, which a training that goes on counts on from; parameter_names() and buffer_names() -> a range of
/// tensor_name, at least one for each, by which checkpoints know them whatever their order; own_gradient_shape() -> bool, whether
/// the input's gradient may have another shape than the input, which the layer before and boundary_shape then know of; and
/// make_context() -> context, where a default-constructed one will not do. Contexts are made before the first step, one per
/// microbatch in flight, and used again. A microbatch that is recomputed has none between its two forwards. The forward's input
/// stays where it is, unchanged, until the microbatch's backward has ended, so a context may point to it. One thread at a time
/// calls a layer; layers that share data are the user's to guard. Not checked by the compiler, but by check_layer: that backward
/// adds to the gradients and does not overwrite them; that a forward run twice gives the same; that the tensors of parameters()
/// and gradients() keep their places; that contexts share nothing.
template <class L, class Tensor, class Queue = host_queue>
concept pipeline_layer = pipeline_tensor<Tensor> && detail::has_context<L> && detail::has_forward<L, Tensor, Queue> &&
    detail::has_backward<L, Tensor, Queue> && detail::has_parameters<L, Tensor> && detail::has_gradients<L, Tensor>;

/// A layer that can compute its parameters' gradients later.
///   backward_input(const Tensor&, context&)   -> Tensor, the input's gradient
///   backward_weight(const Tensor&, context&)  adds to the parameters' gradients; gets the same output gradient, which stays
///                                             where it is in between
/// Other layers do everything in backward_input, and nothing in backward_weight.
/// Not checked by the compiler, but by check_layer: that the two add up to backward.
template <class L, class Tensor, class Queue = host_queue>
concept split_layer = pipeline_layer<L, Tensor, Queue> && detail::has_halves<L, Tensor, Queue>;

namespace detail {

template <class L, class Tensor>
concept ends_with_parameters = requires(L& layer) {
  { layer.parameters() } -> owning_temporary<Tensor>;
};
template <class L, class Tensor>
concept ends_with_gradients = requires(L& layer) {
  { layer.gradients() } -> owning_temporary<Tensor>;
};
template <class L, class Tensor>
concept ends_with_buffers = requires(L& layer) {
  { layer.buffers() } -> owning_temporary<Tensor>;
};
template <class L, class Tensor>
concept has_buffers = requires(L& layer) {
  { layer.buffers() } -> tensor_range<Tensor>;
};

/// Says what is wrong with the members whose tensors the library keeps references to.
template <class L, class Tensor>
consteval void require_kept() {
  static_assert(
      !ends_with_parameters<L, Tensor>,
      "the layer's parameters() returns tensors by value, which end at once, while references to them are kept: return a "
      "reference to a member, a std::span, or std::reference_wrapper<Tensor>s");
  static_assert(
      !ends_with_gradients<L, Tensor>,
      "the layer's gradients() returns tensors by value, which end at once, while references to them are kept: return a "
      "reference to a member, a std::span, or std::reference_wrapper<Tensor>s");
  static_assert(!ends_with_buffers<L, Tensor>,
                "the layer's buffers() returns tensors by value, which end at once, while references to them are kept: return a "
                "reference to a member, a std::span, or std::reference_wrapper<Tensor>s");
  static_assert(has_parameters<L, Tensor> || ends_with_parameters<L, Tensor>,
                "the layer has no parameters() that returns a range of Tensor&");
  static_assert(has_gradients<L, Tensor> || ends_with_gradients<L, Tensor>,
                "the layer has no gradients() that returns a range of Tensor&");
  if constexpr (requires(L & layer) { layer.buffers(); })
    static_assert(has_buffers<L, Tensor> || ends_with_buffers<L, Tensor>, "the layer's buffers() returns no range of Tensor&");
}

/// Says what is missing, one message per member.
template <class L, class Tensor, class Queue = host_queue>
consteval void require_layer() {
  require_tensor<Tensor>();
  static_assert(has_context<L>,
                "the layer has no member type `context` that is default-constructible or that its make_context() returns");
  if constexpr (has_context<L>) {
    static_assert(has_forward<L, Tensor, Queue>, "the layer has no forward(const Tensor&, context&) that returns a Tensor");
    static_assert(has_backward<L, Tensor, Queue>, "the layer has no backward(const Tensor&, context&) that returns a Tensor");
    require_kept<L, Tensor>();
    constexpr bool input = requires(L & l, const Tensor& g, typename L::context& c) { l.backward_input(g, c); }
    || requires(L & l, const Tensor& g, typename L::context& c, const Queue& q) { l.backward_input(g, c, q); };
    constexpr bool weight = requires(L & l, const Tensor& g, typename L::context& c) { l.backward_weight(g, c); }
    || requires(L & l, const Tensor& g, typename L::context& c, const Queue& q) { l.backward_weight(g, c, q); };
    static_assert(input == weight, "a layer has both backward_input and backward_weight, or neither");
  }
}

/// The tensors of a layer's buffers(), if it has that.
template <class Tensor, class L>
[[nodiscard]] std::vector<std::reference_wrapper<Tensor>> buffers(L& layer) {
  std::vector<std::reference_wrapper<Tensor>> found;
  if constexpr (has_buffers<L, Tensor>)
    for (Tensor& t : layer.buffers()) found.push_back(t);
  return found;
}

template <class L>
[[nodiscard]] bool own_gradient_shape([[maybe_unused]] const L& layer) {
  if constexpr (requires { layer.own_gradient_shape(); })
    return layer.own_gradient_shape();
  else
    return false;
}

template <class L>
[[nodiscard]] typename L::context make_context(L& layer) {
  if constexpr (requires { layer.make_context(); })
    return layer.make_context();
  else
    return typename L::context{};
}

}  // namespace detail
}  // namespace hetsched
