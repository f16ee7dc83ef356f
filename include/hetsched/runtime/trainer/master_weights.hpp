// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/master_weights_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>

namespace hetsched {

namespace detail {

// What an optimizer of floats is given.
struct float_row {
  using value_type = float;
  float_row() = default;
  explicit float_row(const tensor_shape& s) : extents(s), values(s.empty() ? 1 : s.back()) {}
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  [[nodiscard]] float* data() { return values.data(); }
  [[nodiscard]] const float* data() const { return values.data(); }
  tensor_shape extents;
  std::vector<float> values;
};

}  // namespace detail

/// An optimizer for parameters of 16 bits, whose elements convert to float and back: the update is that of `own` in floats, on
/// parameters and state that are kept in floats; the parameter is the rounded one. Every float lies in two state tensors, its
/// upper and its lower half, so checkpoints, cuts and ZeRO treat it as any other state: 4 bytes more a parameter, and own's
/// twice. Not thread-safe: it keeps its buffers. Example: make_trainer<Tensor>(layout, make_layer, shape_after, comm,
/// master_weights<adamw>({.learning_rate = 1e-4}),
///                               {.scaling = loss_scaling::dynamic()});
template <class Optimizer>
class master_weights {
 public:
  explicit master_weights(Optimizer o = {}) : own(std::move(o)) {}

  Optimizer own;
  double gradient_factor = 1;  ///< of the trainer: in floats, so that what a scaled loss has saved does not vanish again

  [[nodiscard]] std::string_view name() const { return own.name(); }
  [[nodiscard]] std::vector<std::string> state_names() const {
    std::vector<std::string> names;
    const auto add = [&](std::string_view of) {
      for (const char* half : {"_high", "_low"}) names.push_back(std::string(of) + half);
    };
    for (const std::string_view name : own.state_names()) add(name);
    add("master");
    return names;
  }
  [[nodiscard]] auto settings() const requires requires(const Optimizer& o) { o.settings(); }
  { return own.settings(); }

  template <pipeline_tensor Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id& which, std::int64_t updates) {
    using traits = tensor_traits<Tensor>;
    using element = typename traits::element;
    static_assert(sizeof(element) == 2 && traits::space != memory_space::device,
                  "master_weights are for tensors of 16-bit elements in host memory");
    const std::size_t n = detail::elements(parameter);
    const auto row = [&](detail::float_row& r, const Tensor& from) {
      resize(r, n);
      for (std::size_t i = 0; i < n; ++i) r.values[i] = static_cast<float>(traits::data(from)[i]);
    };
    const std::size_t kept = state.size() / 2 - 1;
    own_state_.resize(kept);
    for (std::size_t k = 0; k < kept; ++k) join(own_state_[k], state[2 * k], state[2 * k + 1], n);
    if (updates == 1)
      row(master_, parameter);
    else
      join(master_, state[2 * kept], state[2 * kept + 1], n);
    row(gradient_, gradient);
    for (auto& g : gradient_.values) g = static_cast<float>(g * gradient_factor);
    own.update(master_, gradient_, std::span(own_state_), which, updates);
    for (std::size_t k = 0; k < kept; ++k) part(own_state_[k], state[2 * k], state[2 * k + 1], n);
    part(master_, state[2 * kept], state[2 * kept + 1], n);
    for (std::size_t i = 0; i < n; ++i) traits::data(parameter)[i] = static_cast<element>(master_.values[i]);
  }

 private:
  static void resize(detail::float_row& r, std::size_t n) {
    r.extents = {1, n};
    r.values.resize(n);
  }
  template <class Tensor>
  static void join(detail::float_row& r, const Tensor& high, const Tensor& low, std::size_t n) {
    resize(r, n);
    for (std::size_t i = 0; i < n; ++i) {
      std::uint16_t h, l;
      std::memcpy(&h, tensor_traits<Tensor>::data(high) + i, sizeof h);
      std::memcpy(&l, tensor_traits<Tensor>::data(low) + i, sizeof l);
      const std::uint32_t bits = static_cast<std::uint32_t>(h) << 16 | l;
      std::memcpy(&r.values[i], &bits, sizeof bits);
    }
  }
  template <class Tensor>
  static void part(const detail::float_row& r, Tensor& high, Tensor& low, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &r.values[i], sizeof bits);
      const auto h = static_cast<std::uint16_t>(bits >> 16), l = static_cast<std::uint16_t>(bits);
      std::memcpy(static_cast<void*>(tensor_traits<Tensor>::data(high) + i), &h, sizeof h);
      std::memcpy(static_cast<void*>(tensor_traits<Tensor>::data(low) + i), &l, sizeof l);
    }
  }

  std::vector<detail::float_row> own_state_;
  detail::float_row master_, gradient_;
};

}  // namespace hetsched
