// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// What an optimizer of torch keeps for a parameter, as state of the trainer's. A specialisation has
///   Options                      torch's
///   name()
///   state_names(const Options&)  of the tensors
///   settings(const Options&)     numbers that are to be the same on all ranks
///   bind(state, updates)         -> torch's state, of these tensors, before the update of this number, from 1; or none
///   keep(torch's state, state)   after the update, what torch has not written to these tensors itself
template <class Optimizer>
struct torch_optimizer_state;

namespace detail {

template <class Adam, class AdamOptions, class AdamState>
struct torch_adam_state {
  using Options = AdamOptions;
  static std::span<const std::string_view> state_names(const Options& o) {
    static constexpr std::array<std::string_view, 3> names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    return std::span(names).first(o.amsgrad() ? 3 : 2);
  }
  static std::array<double, 6> settings(const Options& o) {
    return {o.lr(), std::get<0>(o.betas()), std::get<1>(o.betas()), o.eps(), o.weight_decay(), o.amsgrad() ? 1.0 : 0.0};
  }
  template <class Tensor>
  static std::unique_ptr<torch::optim::OptimizerParamState> bind(std::span<Tensor> state, std::int64_t updates) {
    auto own = std::make_unique<AdamState>();
    own->step(updates - 1);
    own->exp_avg(state[0]);
    own->exp_avg_sq(state[1]);
    if (state.size() > 2) own->max_exp_avg_sq(state[2]);
    return own;
  }
  template <class Tensor>
  static void keep(torch::optim::OptimizerParamState& after, std::span<Tensor> state) {
    // The maximum is a new tensor in every step.
    if (state.size() > 2) state[2].copy_(static_cast<AdamState&>(after).max_exp_avg_sq());
  }
};

}  // namespace detail

template <>
struct torch_optimizer_state<torch::optim::Adam>
    : detail::torch_adam_state<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr std::string_view name() { return "torch_adam"; }
};
template <>
struct torch_optimizer_state<torch::optim::AdamW>
    : detail::torch_adam_state<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr std::string_view name() { return "torch_adamw"; }
};
template <>
struct torch_optimizer_state<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  static constexpr std::string_view name() { return "torch_sgd"; }
  static std::span<const std::string_view> state_names(const Options& o) {
    static constexpr std::array<std::string_view, 1> names{"momentum_buffer"};
    return std::span(names).first(o.momentum() != 0 ? 1 : 0);
  }
  static std::array<double, 5> settings(const Options& o) {
    return {o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov() ? 1.0 : 0.0};
  }
  template <class Tensor>
  static std::unique_ptr<torch::optim::OptimizerParamState> bind(std::span<Tensor> state, std::int64_t updates) {
    if (state.empty() || updates == 1) return nullptr;  // The first gradient becomes the buffer, without dampening.
    auto own = std::make_unique<torch::optim::SGDParamState>();
    own->momentum_buffer(state[0]);
    return own;
  }
  template <class Tensor>
  static void keep(torch::optim::OptimizerParamState& after, std::span<Tensor> state) {
    auto& buffer = static_cast<torch::optim::SGDParamState&>(after).momentum_buffer();
    if (!state.empty() && !buffer.is_same(state[0])) state[0].copy_(buffer);
  }
};

/// torch::optim::AdamW, Adam or SGD as the trainer's optimizer, on each rank's parameters. Its state is the trainer's: it goes
/// into checkpoints, and is cut and sharded like any other. options may change between steps
/// (trainer.optimizer_settings().options), but not what state there is. Others need a torch_optimizer_state; those that call a
/// closure, such as LBFGS, look at all parameters at once and cannot be used. Cost: one of torch's optimizers is made per
/// parameter and step. Example:
///   make_trainer<torch::Tensor>(layout, make_layer, shape_after, channel,
///                               torch_optimizer<torch::optim::AdamW>{torch::optim::AdamWOptions(1e-3)})
template <class Optimizer>
struct torch_optimizer {
  using kept = torch_optimizer_state<Optimizer>;
  typename kept::Options options;

  [[nodiscard]] static constexpr std::string_view name() { return kept::name(); }
  [[nodiscard]] auto state_names() const { return kept::state_names(options); }
  [[nodiscard]] auto settings() const { return kept::settings(options); }

  template <pipeline_tensor Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id&, std::int64_t updates) const {
    step(parameter.detach(), gradient, state, updates);
  }
  /// Of torch_device_tensors, on their queue.
  template <class Tensor, class Queue>
  requires requires(const Tensor& t, const Queue& q) {
    { t.view(q) } -> std::same_as<at::Tensor>;
  }
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const parameter_id&, std::int64_t updates,
              const Queue& q) const {
    const Tensor* reads[] = {&gradient};
    std::vector<Tensor*> writes{&parameter};
    for (auto& s : state) writes.push_back(&s);
    Tensor::work(q, reads, writes, [&] {
      std::vector<at::Tensor> kept_state;
      for (auto& s : state) kept_state.push_back(s.view(q));
      step(parameter.view(q), gradient.view(q), std::span(kept_state), updates);
    });
  }

 private:
  template <class Tensor>
  void step(at::Tensor p, const at::Tensor& gradient, std::span<Tensor> state, std::int64_t updates) const {
    p.mutable_grad() = gradient;
    Optimizer one(std::vector<at::Tensor>{p}, options);
    void* const key = p.unsafeGetTensorImpl();
    if (auto own = kept::bind(state, updates)) one.state()[key] = std::move(own);
    one.step();
    if (const auto after = one.state().find(key); after != one.state().end()) kept::keep(*after->second, state);
  }
};

}  // namespace hetsched
