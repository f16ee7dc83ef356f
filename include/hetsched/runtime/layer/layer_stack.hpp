// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/layer_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/device/steady_time.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/layer/tensor_name.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// Throws: input_error for a gradient that is not contiguous, or not of the input's shape if the layer is to keep that.
template <class Layer, pipeline_tensor Tensor>
void require_input_gradient(const Layer& layer, const Tensor& gradient, const Tensor& input) {
  if (!own_gradient_shape(layer) && !same_shape(gradient, input))
    refuse_shape("the input's gradient", shape_of(gradient), shape_of(input));
  require_contiguous(gradient, "the input's gradient");
}

}  // namespace detail

/// Layers of different types one after the other, together a split_layer. Keeps the tensors between them. Layers get the queue
/// that the tuple gets, if they take one.
template <class Tensor, class... Layers>
class layer_tuple {
  static_assert((detail::require_tensor<Tensor>(), true));
  static_assert(sizeof...(Layers) > 0, "a stage has at least one layer");
  static constexpr std::size_t count = sizeof...(Layers);
  using all = std::index_sequence_for<Layers...>;

 public:
  struct context {
    std::tuple<typename Layers::context...> layers;
    std::vector<Tensor> outputs = std::vector<Tensor>(count - 1);    ///< of all layers but the last
    std::vector<Tensor> gradients = std::vector<Tensor>(count - 1);  ///< of those
  };

  explicit layer_tuple(Layers... layers) : layers_(std::move(layers)...) {}

  [[nodiscard]] context make_context() {
    return {.layers = std::apply([](auto&... l) { return std::tuple(detail::make_context(l)...); }, layers_)};
  }
  template <class Queue = host_queue>
  [[nodiscard]] Tensor forward(const Tensor& input, context& c, const Queue& q = Queue()) {
    (detail::require_layer<Layers, Tensor, Queue>(), ...);
    return forward_from<0>(input, c, q);
  }
  template <class Queue = host_queue>
  [[nodiscard]] Tensor backward(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return backward_from<count - 1, false>(gradient, c, q);
  }
  template <class Queue = host_queue>
  [[nodiscard]] Tensor backward_input(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return backward_from<count - 1, true>(gradient, c, q);
  }
  template <class Queue = host_queue>
  void backward_weight(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    weight_of(gradient, c, q, all{});
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> parameters() {
    return collect([](auto& l) -> decltype(auto) { return l.parameters(); });
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> gradients() {
    return collect([](auto& l) -> decltype(auto) { return l.gradients(); });
  }
  [[nodiscard]] std::vector<parameter_cut> parameter_cuts() {
    std::vector<parameter_cut> found;
    const auto append = [&](auto& l) {
      for (auto& c : detail::parameter_cuts(l)) found.push_back(std::move(c));
    };
    std::apply([&](auto&... l) { (append(l), ...); }, layers_);
    return found;
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> buffers() {
    std::vector<std::reference_wrapper<Tensor>> found;
    const auto append = [&](auto& l) {
      for (Tensor& t : detail::buffers<Tensor>(l)) found.push_back(t);
    };
    std::apply([&](auto&... l) { (append(l), ...); }, layers_);
    return found;
  }
  [[nodiscard]] std::vector<tensor_name> parameter_names() {
    detail::names_of_layers own;
    std::apply([&](auto&... l) { (own.add(l.parameters(), detail::parameter_names(l)), ...); }, layers_);
    return own.joined();
  }
  [[nodiscard]] std::vector<tensor_name> buffer_names() {
    detail::names_of_layers own;
    std::apply([&](auto&... l) { (own.add(detail::buffers<Tensor>(l), detail::buffer_names(l)), ...); }, layers_);
    return own.joined();
  }
  template <class Queue = host_queue>
  void parameters_changed(const Queue& q = Queue()) {
    std::apply([&](auto&... l) { (detail::parameters_changed(l, q), ...); }, layers_);
  }
  void begin_step(std::int64_t step) {
    std::apply([&](auto&... l) { (detail::begin_step(l, step), ...); }, layers_);
  }
  [[nodiscard]] bool own_gradient_shape() const { return detail::own_gradient_shape(std::get<0>(layers_)); }
  [[nodiscard]] std::tuple<Layers...>& layers() { return layers_; }
  /// The number of the layer that was called last, from 0.
  [[nodiscard]] int layer_under_way() const { return under_way_; }

 private:
  template <std::size_t I, class Queue>
  Tensor forward_from(const Tensor& input, context& c, const Queue& q) {
    under_way_ = static_cast<int>(I);
    if constexpr (I + 1 == count) {
      return detail::forward<Tensor>(std::get<I>(layers_), input, std::get<I>(c.layers), q);
    } else {
      c.outputs[I] = detail::forward<Tensor>(std::get<I>(layers_), input, std::get<I>(c.layers), q);
      detail::require_contiguous(c.outputs[I], "the output");
      return forward_from<I + 1>(c.outputs[I], c, q);
    }
  }
  template <std::size_t I, bool Split, class Queue>
  Tensor backward_from(const Tensor& gradient, context& c, const Queue& q) {
    under_way_ = static_cast<int>(I);
    const auto step = [&]() -> Tensor {
      if constexpr (Split)
        return detail::backward_input<Tensor>(std::get<I>(layers_), gradient, std::get<I>(c.layers), q);
      else
        return detail::backward<Tensor>(std::get<I>(layers_), gradient, std::get<I>(c.layers), q);
    };
    if constexpr (I == 0) {
      return step();
    } else {
      c.gradients[I - 1] = step();
      detail::require_input_gradient(std::get<I>(layers_), c.gradients[I - 1], c.outputs[I - 1]);
      return backward_from<I - 1, Split>(c.gradients[I - 1], c, q);
    }
  }
  template <class Queue, std::size_t... I>
  void weight_of(const Tensor& gradient, context& c, const Queue& q, std::index_sequence<I...>) {
    ((under_way_ = static_cast<int>(I),
      detail::backward_weight<Tensor>(std::get<I>(layers_), I + 1 == count ? gradient : c.gradients[I], std::get<I>(c.layers),
                                      q)),
     ...);
  }
  template <class Get>
  std::vector<std::reference_wrapper<Tensor>> collect(Get get) {
    std::vector<std::reference_wrapper<Tensor>> found;
    const auto append = [&](auto& l) {
      for (Tensor& t : get(l)) found.push_back(t);
    };
    std::apply([&](auto&... l) { (append(l), ...); }, layers_);
    return found;
  }

  std::tuple<Layers...> layers_;
  int under_way_ = 0;
};

struct layer_list_options {
  bool recomputes = false;
  int first = 0;  ///< the number of the first layer, in errors
  /// Of the layers' outputs, without the last one's: others are refused. Empty: that is not checked.
  std::vector<tensor_shape> shapes = {};
};

/// What is called around each use of a layer, with its place in the list: a forward, a backward or a half of one. `before` comes
/// ahead of what recomputes, too.
struct layer_use {
  std::function<void(std::size_t)> before = {}, after = {};
};

/// What a layer of a list took, over all microbatches, with layer_use::before.
struct layer_seconds {
  double forward_s = 0;
  double backward_s = 0;  ///< both halves, and recomputing
};

/// Any number of layers of one type one after the other, together a split_layer. Use any_layer for a list of different types.
/// If it recomputes, a microbatch keeps the layers' inputs only: a layer's context is made for its forward and dropped behind it,
/// and made again, by the same forward, for its backward; where the backward is split, it lives until the weight half has ended.
/// Queue: what the layers are given, if they take one.
template <class Tensor, class Layer, class Queue = host_queue>
class layer_list {
  static_assert((detail::require_tensor<Tensor>(), true));

 public:
  struct context {
    std::vector<std::optional<typename Layer::context>> layers;
    std::vector<Tensor> outputs;    ///< of all layers but the last
    std::vector<Tensor> gradients;  ///< of those
    const Tensor* input = nullptr;  ///< of the first layer
  };

  /// Throws: input_error for a wrong number of shapes.
  explicit layer_list(std::vector<Layer> layers, layer_list_options options = {})
      : layers_(std::move(layers)), options_(std::move(options)), under_way_(options_.first), took_(layers_.size()) {
    detail::require_layer<Layer, Tensor, Queue>();
    if (!options_.shapes.empty() && options_.shapes.size() + 1 != layers_.size())
      throw input_error(std::to_string(layers_.size()) + " layers have " + std::to_string(layers_.size() - 1) +
                        " outputs between them, not " + std::to_string(options_.shapes.size()));
  }

  [[nodiscard]] context make_context() {
    context c;
    c.layers.resize(layers_.size());
    for (std::size_t i = 0; i < layers_.size() && !options_.recomputes; ++i)
      c.layers[i].emplace(detail::make_context(layers_[i]));
    c.outputs.resize(layers_.empty() ? 0 : layers_.size() - 1);
    c.gradients.resize(c.outputs.size());
    return c;
  }
  /// Requires, here and below: there is a layer, and the context comes from make_context().
  [[nodiscard]] Tensor forward(const Tensor& input, context& c, const Queue& q = Queue()) {
    c.input = &input;
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
      c.outputs[i] = forward_of(i, c, q);
      if (options_.shapes.empty())
        detail::require_contiguous(c.outputs[i], "the output");
      else
        detail::require_handed_over(c.outputs[i], options_.shapes[i], "the output");
    }
    return forward_of(layers_.size() - 1, c, q);
  }
  [[nodiscard]] Tensor backward(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return back<false>(gradient, c, q,
                       [&](Layer& l, const Tensor& g, auto& own) -> Tensor { return detail::backward<Tensor>(l, g, own, q); });
  }
  [[nodiscard]] Tensor backward_input(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return back<true>(gradient, c, q, [&](Layer& l, const Tensor& g, auto& own) -> Tensor {
      return detail::backward_input<Tensor>(l, g, own, q);
    });
  }
  void backward_weight(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const double start_s = now_s();
      begin(i);
      detail::backward_weight<Tensor>(layers_[i], i + 1 == layers_.size() ? gradient : c.gradients[i], *c.layers[i], q);
      took_[i].backward_s += now_s() - start_s;
      end(i);
      if (options_.recomputes) drop(i, c);
    }
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> parameters() {
    std::vector<std::reference_wrapper<Tensor>> found;
    for (auto& l : layers_)
      for (Tensor& t : l.parameters()) found.push_back(t);
    return found;
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> gradients() {
    std::vector<std::reference_wrapper<Tensor>> found;
    for (auto& l : layers_)
      for (Tensor& t : l.gradients()) found.push_back(t);
    return found;
  }
  [[nodiscard]] std::vector<parameter_cut> parameter_cuts() {
    std::vector<parameter_cut> found;
    for (auto& l : layers_)
      for (auto& c : detail::parameter_cuts(l)) found.push_back(std::move(c));
    return found;
  }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> buffers() {
    std::vector<std::reference_wrapper<Tensor>> found;
    for (auto& l : layers_)
      for (Tensor& t : detail::buffers<Tensor>(l)) found.push_back(t);
    return found;
  }
  [[nodiscard]] std::vector<tensor_name> parameter_names() {
    detail::names_of_layers own;
    for (auto& l : layers_) own.add(l.parameters(), detail::parameter_names(l));
    return own.joined();
  }
  [[nodiscard]] std::vector<tensor_name> buffer_names() {
    detail::names_of_layers own;
    for (auto& l : layers_) own.add(detail::buffers<Tensor>(l), detail::buffer_names(l));
    return own.joined();
  }
  void parameters_changed(const Queue& q = Queue()) {
    for (auto& l : layers_) detail::parameters_changed(l, q);
  }
  void begin_step(std::int64_t step) {
    for (auto& l : layers_) detail::begin_step(l, step);
  }
  [[nodiscard]] bool own_gradient_shape() const { return !layers_.empty() && detail::own_gradient_shape(layers_.front()); }
  [[nodiscard]] std::vector<Layer>& layers() { return layers_; }
  /// The number of the layer that was called last.
  [[nodiscard]] int layer_under_way() const { return under_way_; }
  /// What the layers took since begin_times(); 0 where they only enqueue their work.
  [[nodiscard]] std::span<const layer_seconds> took() const { return took_; }
  void begin_times() { took_.assign(layers_.size(), {}); }
  /// From the next use on.
  void around(layer_use use) { use_ = std::move(use); }

 private:
  void begin(std::size_t i) {
    under_way_ = options_.first + static_cast<int>(i);
    if (use_.before) use_.before(i);
  }
  void end(std::size_t i) {
    if (use_.after) use_.after(i);
  }
  [[nodiscard]] static double now_s() {
    if constexpr (std::same_as<Queue, host_queue>)
      return steady_now_s();
    else
      return 0;
  }
  [[nodiscard]] const Tensor& input_of(std::size_t i, const context& c) const { return i == 0 ? *c.input : c.outputs[i - 1]; }
  Tensor forward_of(std::size_t i, context& c, const Queue& q) {
    const double start_s = now_s();
    begin(i);
    const auto run = [&](auto& own) {
      Tensor output = detail::forward<Tensor>(layers_[i], input_of(i, c), own, q);
      took_[i].forward_s += now_s() - start_s;
      end(i);
      return output;
    };
    if (!options_.recomputes) return run(*c.layers[i]);
    auto own = detail::make_context(layers_[i]);
    return run(own);
  }
  /// Frees what only this layer's backward needs.
  void drop(std::size_t i, context& c) {
    c.layers[i].reset();
    if (i < c.gradients.size()) c.gradients[i] = Tensor{};
  }
  template <bool Split, class Step>
  Tensor back(const Tensor& gradient, context& c, const Queue& q, Step step) {
    const Tensor* g = &gradient;
    for (std::size_t i = layers_.size(); true;) {
      --i;
      const double start_s = now_s();
      begin(i);
      if (options_.recomputes) {
        c.layers[i].emplace(detail::make_context(layers_[i]));
        [[maybe_unused]] const Tensor again = detail::forward<Tensor>(layers_[i], input_of(i, c), *c.layers[i], q);
      }
      Tensor next = step(layers_[i], *g, *c.layers[i]);
      took_[i].backward_s += now_s() - start_s;
      end(i);
      if (options_.recomputes && !Split) drop(i, c);
      if (i == 0) return next;
      detail::require_input_gradient(layers_[i], next, c.outputs[i - 1]);
      c.gradients[i - 1] = std::move(next);
      g = &c.gradients[i - 1];
    }
  }

  std::vector<Layer> layers_;
  layer_list_options options_;
  layer_use use_;
  int under_way_ = 0;
  std::vector<layer_seconds> took_;
};

}  // namespace hetsched
