// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A user's layer that answers requests; a whole stage is one, too.
///   state                       type, movable; what one request keeps from step to step, such as its keys and values
///   infer(const Tensor&, state&)
///                               -> Tensor, the output; the first call for a request finds a new state
/// Optional: make_state() -> state, where a default-constructed one will not do. One thread at a time calls a layer, for one
/// request after the other. What infer throws ends that request and no other.
/// Not checked: that states share nothing, and that a layer is as before when infer has thrown.
template <class L, class Tensor>
concept inference_layer = pipeline_tensor<Tensor> && std::movable<typename L::state> &&
                          (std::default_initializable<typename L::state> ||
                           requires(L & layer) {
                             { layer.make_state() } -> std::same_as<typename L::state>;
                           }) &&
                          requires(L& layer, const Tensor& input, typename L::state& s) {
  { layer.infer(input, s) } -> std::convertible_to<Tensor>;
};

namespace detail {

template <class L>
[[nodiscard]] typename L::state make_state(L& layer) {
  if constexpr (requires { layer.make_state(); })
    return layer.make_state();
  else
    return typename L::state{};
}

}  // namespace detail

/// Layers of one type one after the other, together an inference_layer.
template <pipeline_tensor Tensor, inference_layer<Tensor> Layer>
class inference_list {
 public:
  using state = std::vector<typename Layer::state>;

  /// Requires: there is a layer.
  explicit inference_list(std::vector<Layer> layers) : layers_(std::move(layers)) { HETSCHED_EXPECTS(!layers_.empty()); }

  [[nodiscard]] state make_state() {
    state all;
    all.reserve(layers_.size());
    for (auto& l : layers_) all.push_back(detail::make_state(l));
    return all;
  }
  [[nodiscard]] Tensor infer(const Tensor& input, state& s) {
    Tensor x = layers_.front().infer(input, s.front());
    for (std::size_t i = 1; i < layers_.size(); ++i) x = layers_[i].infer(x, s[i]);
    return x;
  }
  [[nodiscard]] std::vector<Layer>& layers() { return layers_; }

 private:
  std::vector<Layer> layers_;
};

}  // namespace hetsched
