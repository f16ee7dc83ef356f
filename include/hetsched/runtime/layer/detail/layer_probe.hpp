// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/check_layer_test.cpp.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// A tensor's numbers, if they are contiguous.
struct seen_tensor {
  tensor_shape shape;
  bool contiguous = true;
  std::vector<double> values{};
  const void* address = nullptr;
};

enum class backward_part : std::uint8_t { whole, input, weight };

/// A layer of any type, with two microbatches, as numbers.
class layer_probe {
 public:
  layer_probe() = default;
  layer_probe(const layer_probe&) = delete;
  layer_probe& operator=(const layer_probe&) = delete;
  virtual ~layer_probe() = default;

  /// Whether tensors lie where the layer was before it was moved: then they are not to be touched.
  [[nodiscard]] virtual bool stayed_behind() = 0;
  [[nodiscard]] virtual std::vector<seen_tensor> parameters() = 0;
  [[nodiscard]] virtual std::vector<seen_tensor> gradients() = 0;
  [[nodiscard]] virtual bool has_halves() const = 0;
  /// Returns: the number that is there then.
  virtual double set_parameter(std::size_t n, std::size_t element, double value) = 0;
  virtual double set_input(std::size_t m, std::size_t element, double value) = 0;
  virtual void set_gradient(std::size_t n, const std::vector<double>& values) = 0;
  /// Of microbatch m: makes them.
  virtual void make_input(std::size_t m, const tensor_shape& shape, const std::vector<double>& values) = 0;
  virtual void make_output_gradient(std::size_t m, const tensor_shape& shape, const std::vector<double>& values) = 0;
  [[nodiscard]] virtual seen_tensor input(std::size_t m) = 0;
  [[nodiscard]] virtual seen_tensor output_gradient(std::size_t m) = 0;
  /// The number of a new context.
  [[nodiscard]] virtual std::size_t make_context() = 0;
  /// The last one that was made.
  virtual void drop_context() = 0;
  [[nodiscard]] virtual seen_tensor forward(std::size_t context, std::size_t m) = 0;
  /// Writes over what the last forward returned, as whoever it was sent to might.
  virtual void spoil_output() = 0;
  /// Of the half that makes no gradient of the input: no numbers.
  [[nodiscard]] virtual seen_tensor backward(std::size_t context, std::size_t m, backward_part part) = 0;
};

template <class Tensor, class Layer>
class layer_probe_of final : public layer_probe {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;

 public:
  explicit layer_probe_of(Layer&& layer)
      : was_at_(reinterpret_cast<std::uintptr_t>(&layer)), layer_(std::make_unique<Layer>(std::move(layer))) {}

  bool stayed_behind() override {
    const auto lies_there = [&](const Tensor& t) {
      const auto at = reinterpret_cast<std::uintptr_t>(&t);
      return at >= was_at_ && at < was_at_ + sizeof(Layer);
    };
    for (const Tensor& t : layer_->parameters())
      if (lies_there(t)) return true;
    for (const Tensor& t : layer_->gradients())
      if (lies_there(t)) return true;
    return false;
  }
  std::vector<seen_tensor> parameters() override { return list(layer_->parameters()); }
  std::vector<seen_tensor> gradients() override { return list(layer_->gradients()); }
  bool has_halves() const override { return detail::has_halves<Layer, Tensor, host_queue>; }
  double set_parameter(std::size_t n, std::size_t k, double value) override {
    double found = 0;
    for (Tensor& t : layer_->parameters())
      if (n-- == 0) found = set(t, k, value);
    parameters_changed(*layer_, queue_);
    return found;
  }
  double set_input(std::size_t m, std::size_t k, double value) override { return set(inputs_[m], k, value); }
  void set_gradient(std::size_t n, const std::vector<double>& values) override {
    for (Tensor& t : layer_->gradients())
      if (n-- == 0) set_all(t, values);
  }
  void make_input(std::size_t m, const tensor_shape& shape, const std::vector<double>& values) override {
    inputs_[m] = made(shape, values);
  }
  void make_output_gradient(std::size_t m, const tensor_shape& shape, const std::vector<double>& values) override {
    output_gradients_[m] = made(shape, values);
  }
  seen_tensor input(std::size_t m) override { return seen(inputs_[m]); }
  seen_tensor output_gradient(std::size_t m) override { return seen(output_gradients_[m]); }
  std::size_t make_context() override {
    contexts_.push_back(detail::make_context(*layer_));
    return contexts_.size() - 1;
  }
  void drop_context() override { contexts_.pop_back(); }
  seen_tensor forward(std::size_t context, std::size_t m) override {
    output_ = detail::forward<Tensor>(*layer_, std::as_const(inputs_[m]), contexts_[context], queue_);
    return seen(output_);
  }
  void spoil_output() override { set_all(output_, std::vector<double>(elements(output_), 0.5)); }
  seen_tensor backward(std::size_t context, std::size_t m, backward_part part) override {
    auto& c = contexts_[context];
    const auto& dy = std::as_const(output_gradients_[m]);
    if (part == backward_part::weight) {
      backward_weight<Tensor>(*layer_, dy, c, queue_);
      return {};
    }
    return seen(part == backward_part::whole ? detail::backward<Tensor>(*layer_, dy, c, queue_)
                                             : backward_input<Tensor>(*layer_, dy, c, queue_));
  }

 private:
  template <class Range>
  static std::vector<seen_tensor> list(Range&& range) {
    std::vector<seen_tensor> found;
    for (const Tensor& t : range) found.push_back(seen(t));
    return found;
  }
  static seen_tensor seen(const Tensor& t) {
    seen_tensor s{.shape = shape_of(t), .contiguous = is_contiguous(t), .address = &t};
    if (s.contiguous)
      for (std::size_t k = 0, n = elements(t); k < n; ++k) s.values.push_back(as_double(traits::data(t)[k]));
    return s;
  }
  static element as_element(double value) {
    if constexpr (small_float<element>)
      return static_cast<element>(static_cast<float>(value));
    else
      return static_cast<element>(value);
  }
  static double set(Tensor& t, std::size_t k, double value) { return as_double(traits::data(t)[k] = as_element(value)); }
  static void set_all(Tensor& t, const std::vector<double>& values) {
    for (std::size_t k = 0; k < values.size(); ++k) set(t, k, values[k]);
  }
  Tensor made(const tensor_shape& shape, const std::vector<double>& values) const {
    Tensor t = make_tensor<Tensor>(shape, queue_);
    set_all(t, values);
    return t;
  }

  host_queue queue_;
  std::uintptr_t was_at_;
  std::unique_ptr<Layer> layer_;
  std::array<Tensor, 2> inputs_{}, output_gradients_{};
  std::deque<typename Layer::context> contexts_;  // they stay where they are, as in a rank
  Tensor output_{};
};

}  // namespace hetsched::detail
