// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/layer_test.cpp.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/layer/tensor_name.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Owns a layer of any type; movable. Its contexts come from make_context(). Queue: what the layer is given, if it takes one.
template <class Tensor, class Queue = host_queue>
class any_layer {
  static_assert((detail::require_tensor<Tensor>(), true));
  struct held_context {
    virtual ~held_context() = default;
  };
  struct held_layer {
    virtual ~held_layer() = default;
    virtual std::unique_ptr<held_context> make_context() = 0;
    virtual Tensor forward(const Tensor&, held_context&, const Queue&) = 0;
    virtual Tensor backward(const Tensor&, held_context&, const Queue&) = 0;
    virtual Tensor backward_input(const Tensor&, held_context&, const Queue&) = 0;
    virtual void backward_weight(const Tensor&, held_context&, const Queue&) = 0;
    virtual std::vector<std::reference_wrapper<Tensor>> parameters() = 0;
    virtual std::vector<std::reference_wrapper<Tensor>> gradients() = 0;
    virtual std::vector<parameter_cut> parameter_cuts() = 0;
    virtual std::vector<std::reference_wrapper<Tensor>> buffers() = 0;
    virtual std::vector<tensor_name> parameter_names() = 0;
    virtual std::vector<tensor_name> buffer_names() = 0;
    virtual void parameters_changed(const Queue&) = 0;
    virtual void begin_step(std::int64_t) = 0;
    [[nodiscard]] virtual bool own_gradient_shape() const = 0;
  };

  template <class L>
  struct layer_of final : held_layer {
    struct own_context final : held_context {
      explicit own_context(L& l) : value(detail::make_context(l)) {}
      typename L::context value;
    };
    explicit layer_of(L l) : layer(std::move(l)) {}
    static typename L::context& own(held_context& c) { return static_cast<own_context&>(c).value; }
    std::unique_ptr<held_context> make_context() override { return std::make_unique<own_context>(layer); }
    Tensor forward(const Tensor& input, held_context& c, const Queue& q) override {
      return detail::forward<Tensor>(layer, input, own(c), q);
    }
    Tensor backward(const Tensor& gradient, held_context& c, const Queue& q) override {
      return detail::backward<Tensor>(layer, gradient, own(c), q);
    }
    Tensor backward_input(const Tensor& gradient, held_context& c, const Queue& q) override {
      return detail::backward_input<Tensor>(layer, gradient, own(c), q);
    }
    void backward_weight(const Tensor& gradient, held_context& c, const Queue& q) override {
      detail::backward_weight<Tensor>(layer, gradient, own(c), q);
    }
    std::vector<std::reference_wrapper<Tensor>> parameters() override { return list(layer.parameters()); }
    std::vector<std::reference_wrapper<Tensor>> gradients() override { return list(layer.gradients()); }
    std::vector<parameter_cut> parameter_cuts() override { return detail::parameter_cuts(layer); }
    std::vector<std::reference_wrapper<Tensor>> buffers() override { return detail::buffers<Tensor>(layer); }
    std::vector<tensor_name> parameter_names() override { return detail::parameter_names(layer); }
    std::vector<tensor_name> buffer_names() override { return detail::buffer_names(layer); }
    void parameters_changed(const Queue& q) override { detail::parameters_changed(layer, q); }
    void begin_step(std::int64_t step) override { detail::begin_step(layer, step); }
    [[nodiscard]] bool own_gradient_shape() const override { return detail::own_gradient_shape(layer); }
    template <class Range>
    static std::vector<std::reference_wrapper<Tensor>> list(Range&& range) {
      std::vector<std::reference_wrapper<Tensor>> found;
      for (Tensor& t : range) found.push_back(t);
      return found;
    }
    L layer;
  };

 public:
  using context = std::unique_ptr<held_context>;

  template <class L>
  requires(!std::same_as<std::remove_cvref_t<L>, any_layer>) any_layer(L&& layer) {
    detail::require_layer<std::remove_cvref_t<L>, Tensor, Queue>();
    layer_ = std::make_unique<layer_of<std::remove_cvref_t<L>>>(std::forward<L>(layer));
  }

  [[nodiscard]] context make_context() { return layer_->make_context(); }
  [[nodiscard]] Tensor forward(const Tensor& input, context& c, const Queue& q = Queue()) {
    return layer_->forward(input, *c, q);
  }
  [[nodiscard]] Tensor backward(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return layer_->backward(gradient, *c, q);
  }
  [[nodiscard]] Tensor backward_input(const Tensor& gradient, context& c, const Queue& q = Queue()) {
    return layer_->backward_input(gradient, *c, q);
  }
  void backward_weight(const Tensor& gradient, context& c, const Queue& q = Queue()) { layer_->backward_weight(gradient, *c, q); }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> parameters() { return layer_->parameters(); }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> gradients() { return layer_->gradients(); }
  [[nodiscard]] std::vector<parameter_cut> parameter_cuts() { return layer_->parameter_cuts(); }
  [[nodiscard]] std::vector<std::reference_wrapper<Tensor>> buffers() { return layer_->buffers(); }
  [[nodiscard]] std::vector<tensor_name> parameter_names() { return layer_->parameter_names(); }
  [[nodiscard]] std::vector<tensor_name> buffer_names() { return layer_->buffer_names(); }
  void parameters_changed(const Queue& q = Queue()) { layer_->parameters_changed(q); }
  void begin_step(std::int64_t step) { layer_->begin_step(step); }
  [[nodiscard]] bool own_gradient_shape() const { return layer_->own_gradient_shape(); }

  /// The layer inside if it is of this type, else null.
  template <class L>
  [[nodiscard]] L* get() {
    auto* const held = dynamic_cast<layer_of<L>*>(layer_.get());
    return held ? &held->layer : nullptr;
  }

 private:
  std::unique_ptr<held_layer> layer_;
};

}  // namespace hetsched
