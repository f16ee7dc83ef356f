// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include <hetsched/model/layer.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// An operator, and how often it runs. That is no whole number where layers are averaged.
struct operator_use {
  operator_shape op{};
  double times = 1;

  friend bool operator==(const operator_use&, const operator_use&) = default;
};

/// The part of a microbatch, and of a layer, that one device computes.
struct layer_share {
  std::int64_t samples = 1;  ///< of the microbatch, on this device
  int context = 1;           ///< devices that share each sequence
  int tensor = 1;            ///< equal slices of the layer's heads and inner width: as many as devices share it
  int expert = 1;            ///< devices that share its experts; each gets the tokens of all for its own
  int slices = 1;            ///< of `tensor`, those that this device has

  friend bool operator==(const layer_share&, const layer_share&) = default;
};

/// What one device launches for one layer and one microbatch.
struct layer_operators {
  std::vector<operator_use> forward{};
  std::vector<operator_use> backward{};         ///< without recomputation
  std::vector<operator_use> weight_backward{};  ///< of `backward`, those that compute gradients of weights
  std::vector<operator_use> selective{};        ///< of `forward`, what selective recomputation runs again
  int parameters = 0;                           ///< tensors of them, each of which has a gradient; 0 if not told

  friend bool operator==(const layer_operators&, const layer_operators&) = default;
};

/// A model whose layers are known by their operators.
///   chain()                  the layers' amounts
///   operators(index, share)  what one device launches for a layer
///   kind(index)              the first layer that launches the same as this one, for every share
///   slices()                 optional: how many equal slices of heads and inner width there are, for uneven shares
template <class T>
concept operator_model = requires(const T& model, int index, const layer_share& share) {
  { model.chain() } -> std::convertible_to<const layer_chain&>;
  { model.operators(index, share) } -> std::convertible_to<layer_operators>;
  { model.kind(index) } -> std::convertible_to<int>;
};

}  // namespace hetsched
