// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A parameter's update, as an optimizer takes those of all parameters of a rank at once. The tensors stay where they are.
template <class Tensor>
struct parameter_update {
  Tensor* parameter = nullptr;
  Tensor* gradient = nullptr;
  std::span<Tensor> state{};
  parameter_id which{};
  std::int64_t updates = 0;  ///< from 1
};

/// Turns gradients into new parameters, one parameter at a time; a value that can be changed between steps.
///   name()          the name of its state in checkpoints
///   state_names()   names of the tensors that it keeps per parameter, which have the parameter's shape and begin with zeros
///   update(parameter, gradient, state, which, updates)
///                   changes parameter and state; `updates` counts from 1. May overwrite the gradient. On a device it may take
///                   the rank's queue as a last argument, and enqueues its work there; else it is called when all work has been
///                   done
/// Optional: settings() -> range of doubles that have to be the same on all ranks, which is then checked; gradient_factor, a
/// double that the trainer sets before an update: what gradients are to be multiplied by. Without it they come multiplied;
/// update_all(std::span<const parameter_update<Tensor>>, queue), which is called in place of update with all of this rank's.
/// Not checked: that the same arguments give the same bits on every rank, and that state_names() stay as they are.
template <class O, class Tensor, class Queue = host_queue>
concept optimizer = pipeline_tensor<Tensor> && std::movable<O> && requires(O& o) {
  { o.name() } -> std::convertible_to<std::string_view>;
  { *std::begin(o.state_names()) } -> std::convertible_to<std::string_view>;
  std::end(o.state_names());
} &&(
    requires(O& o, Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id& which,
             std::int64_t updates) { o.update(parameter, gradient, state, which, updates); } ||
    requires(O & o, Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id& which, std::int64_t updates,
             const Queue& q) { o.update(parameter, gradient, state, which, updates, q); });

namespace detail {

template <class O, class Tensor, class Queue>
void update(O& o, Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id& which, std::int64_t updates,
            const Queue& q) {
  if constexpr (requires { o.update(parameter, gradient, state, which, updates, q); }) {
    o.update(parameter, gradient, state, which, updates, q);
  } else {
    q.finish();
    o.update(parameter, gradient, state, which, updates);
  }
}

template <class O, class Tensor, class Queue>
void update(O& o, std::span<const parameter_update<Tensor>> all, const Queue& q) {
  if constexpr (requires { o.update_all(all, q); })
    o.update_all(all, q);
  else
    for (const auto& u : all) update(o, *u.parameter, *u.gradient, u.state, u.which, u.updates, q);
}

/// A power by repeated squaring.
/// Determinism: the same bits wherever doubles are multiplied as they should be.
[[nodiscard]] constexpr double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

template <class Tensor>
constexpr void require_host_arithmetic() {
  static_assert(
      tensor_traits<Tensor>::space != memory_space::device && std::is_floating_point_v<typename tensor_traits<Tensor>::element>,
      "the library's optimizers work on floats and doubles in host memory; bring your own for other tensors");
}

}  // namespace detail

/// Stochastic gradient descent: g = gradient + weight_decay * p, v = momentum * v + g, p -= learning_rate * v. With
/// Nesterov's momentum, p -= learning_rate * (g + momentum * v). Computes in the tensors' elements.
/// Requires: the momentum does not become nonzero after the training has begun.
/// Source: Sutskever et al. 2013, as usually implemented.
struct sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;

  [[nodiscard]] static constexpr std::string_view name() { return "sgd"; }
  [[nodiscard]] std::span<const std::string_view> state_names() const {
    static constexpr std::array<std::string_view, 1> names{"velocity"};
    return std::span(names).first(momentum != 0 ? 1 : 0);
  }
  [[nodiscard]] std::array<double, 4> settings() const { return {learning_rate, momentum, nesterov ? 1.0 : 0.0, weight_decay}; }

  template <pipeline_tensor Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id&, std::int64_t) const {
    detail::require_host_arithmetic<Tensor>();
    using traits = tensor_traits<Tensor>;
    using real = typename traits::element;
    const auto rate = static_cast<real>(learning_rate), mu = static_cast<real>(momentum), decay = static_cast<real>(weight_decay);
    auto* const p = traits::data(parameter);
    const auto* const g = traits::data(std::as_const(gradient));
    const std::size_t n = detail::elements(parameter);
    if (state.empty()) {
      for (std::size_t i = 0; i < n; ++i) p[i] -= rate * (g[i] + decay * p[i]);
      return;
    }
    auto* const v = traits::data(state[0]);
    for (std::size_t i = 0; i < n; ++i) {
      const real slope = g[i] + decay * p[i];
      v[i] = mu * v[i] + slope;
      p[i] -= rate * (nesterov ? slope + mu * v[i] : v[i]);
    }
  }
};

/// AdamW: Adam with bias correction, where weights decay by learning_rate * weight_decay apart from the gradient. Computes in
/// the tensors' elements, bias corrections in doubles.
/// Source: Loshchilov and Hutter 2019, algorithm 2.
struct adamw {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;

  [[nodiscard]] static constexpr std::string_view name() { return "adamw"; }
  [[nodiscard]] static std::span<const std::string_view> state_names() {
    static constexpr std::array<std::string_view, 2> names{"first_moment", "second_moment"};
    return names;
  }
  [[nodiscard]] std::array<double, 5> settings() const { return {learning_rate, beta1, beta2, epsilon, weight_decay}; }

  template <pipeline_tensor Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id&, std::int64_t updates) const {
    detail::require_host_arithmetic<Tensor>();
    using traits = tensor_traits<Tensor>;
    using real = typename traits::element;
    const auto b1 = static_cast<real>(beta1), b2 = static_cast<real>(beta2), eps = static_cast<real>(epsilon);
    const auto rest1 = static_cast<real>(1 - beta1), rest2 = static_cast<real>(1 - beta2);
    const auto keep = static_cast<real>(1 - learning_rate * weight_decay);
    const auto rate = static_cast<real>(learning_rate / (1 - detail::power(beta1, updates)));
    const auto unbias = static_cast<real>(1 / std::sqrt(1 - detail::power(beta2, updates)));
    auto* const p = traits::data(parameter);
    const auto* const g = traits::data(std::as_const(gradient));
    auto* const m = traits::data(state[0]);
    auto* const v = traits::data(state[1]);
    for (std::size_t i = 0, n = detail::elements(parameter); i < n; ++i) {
      m[i] = b1 * m[i] + rest1 * g[i];
      v[i] = b2 * v[i] + rest2 * g[i] * g[i];
      p[i] = keep * p[i] - rate * m[i] / (std::sqrt(v[i]) * unbias + eps);
    }
  }
};

/// An optimizer with other settings for some parameters, such as no weight decay for norms and biases.
/// rule: changes a copy of `own` for a parameter; not its state_names().
/// Example:
///   parameter_groups<adamw> groups{adamw{}, [](adamw& own, const parameter_id& which) {
///     if (which.number == bias) own.weight_decay = 0;
///   }};
template <class Optimizer>
struct parameter_groups {
  Optimizer own;
  std::function<void(Optimizer&, const parameter_id&)> rule;

  [[nodiscard]] std::string_view name() const { return own.name(); }
  [[nodiscard]] auto state_names() const { return own.state_names(); }
  [[nodiscard]] auto settings() const requires requires(const Optimizer& o) { o.settings(); }
  { return own.settings(); }

  template <pipeline_tensor Tensor, class Queue = host_queue>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id& which, std::int64_t updates,
              const Queue& q = Queue()) const {
    auto chosen = own;
    rule(chosen, which);
    detail::update(chosen, parameter, gradient, state, which, updates, q);
  }
};

}  // namespace hetsched
