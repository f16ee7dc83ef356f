// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// The whole shape of each layer's output, for a microbatch: one for all layers, or a function of the layer, and of the size of
/// its pipeline's microbatches if it takes that. A function may return boundary_shape, where gradients are of other shapes.
class layer_shapes {
 public:
  layer_shapes(std::initializer_list<std::size_t> same) : layer_shapes(tensor_shape(same)) {}
  layer_shapes(tensor_shape same) : of_([same](int, int) { return same; }), same_(std::move(same)) {}
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, layer_shapes> && std::is_invocable_r_v<boundary_shape, F&, int> &&
           !std::is_invocable_r_v<boundary_shape, F&, int, int>)  //
      layer_shapes(F&& of)
      : of_([of = std::forward<F>(of)](int layer, int) mutable { return of(layer); }) {}
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, layer_shapes> && std::is_invocable_r_v<boundary_shape, F&, int, int>)  //
      layer_shapes(F&& of)
      : of_(std::forward<F>(of)) {}

  [[nodiscard]] boundary_shape operator()(int layer, int microbatch_size) const { return of_(layer, microbatch_size); }
  /// That of all layers, if it was given as one.
  [[nodiscard]] const std::optional<tensor_shape>& same() const { return same_; }

 private:
  std::function<boundary_shape(int, int)> of_;
  std::optional<tensor_shape> same_;
};

}  // namespace hetsched
