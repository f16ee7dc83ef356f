// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>

namespace gpt {

/// One of the library's optimizers.
struct chosen_optimizer {
  std::variant<hetsched::sgd, hetsched::adamw> own;
  [[nodiscard]] std::string_view name() const {
    return std::visit([](const auto& o) -> std::string_view { return o.name(); }, own);
  }
  [[nodiscard]] std::span<const std::string_view> state_names() const {
    return std::visit([](const auto& o) -> std::span<const std::string_view> { return o.state_names(); }, own);
  }
  [[nodiscard]] std::vector<double> settings() const {
    return std::visit(
        [](const auto& o) {
          const auto s = o.settings();
          return std::vector<double>(s.begin(), s.end());
        },
        own);
  }
  void set_learning_rate(double rate) {
    std::visit([&](auto& o) { o.learning_rate = rate; }, own);
  }
  template <class Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const hetsched::parameter_id& which,
              std::int64_t updates) {
    std::visit([&](auto& o) { o.update(parameter, gradient, state, which, updates); }, own);
  }
};

}  // namespace gpt
