// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/layer/detail/layer_probe.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// What a layer can do that the compiler does not see, and that trains wrongly or ends in a crash.
enum class layer_mistake : std::uint8_t {
  throws,
  parameters_move,           ///< parameters() or gradients() are not the tensors that they were
  gradient_shape,            ///< there is not one gradient of the same shape per parameter
  not_contiguous,            ///< an output, a gradient or a parameter
  output_shape,              ///< is not the one that was told
  input_gradient_shape,      ///< is not the input's
  given_changed,             ///< the input or the output's gradient, which are only lent
  parameter_changed,         ///< by forward or backward
  not_finite,                ///< an output or a gradient
  forward_differs,           ///< when it runs again
  output_kept,               ///< backward reads the output, which has been sent away by then
  gradient_overwritten,      ///< and not added to
  contexts_share,            ///< what one microbatch leaves another one finds
  context_used_once,         ///< a context that has served a microbatch is not ready for the next one
  halves_differ,             ///< backward_input and backward_weight do not add up to backward
  wrong_input_gradient,      ///< by finite differences
  wrong_parameter_gradient,  ///< by finite differences
};

/// One mistake, in one place.
struct layer_finding {
  layer_mistake what = layer_mistake::throws;
  std::string where;          ///< "parameter 1", "the output", ...
  std::string expected, got;  ///< shapes, or numbers and where they are
  [[nodiscard]] std::string text() const;
  friend bool operator==(const layer_finding&, const layer_finding&) = default;
};

struct layer_report {
  std::vector<layer_finding> findings;
  [[nodiscard]] bool ok() const { return findings.empty(); }
  /// One line per finding; empty if nothing was found.
  [[nodiscard]] std::string text() const;
};

struct check_layer_options {
  tensor_shape output = {};  ///< expected; empty: any
  bool input_gradient =
      true;                ///< false: inputs are no numbers to differentiate by, such as tokens, and backward may return anything
  std::uint64_t seed = 1;  ///< of inputs and output gradients
  std::size_t elements = 64;  ///< of each tensor, drawn from all, by which differences are taken
  /// Draws an element of an input; none: uniform between -1 and 1.
  std::function<double(random_source&)> input_element = {};
  double step = 0;       ///< of finite differences; 0: the cube root of the smallest change of an element at 1
  double tolerance = 0;  ///< of gradients, for the largest element of the tensor plus 1; 0: 7e-8 of doubles, 0.05 of floats
};

namespace detail {

/// `epsilon`: of a tensor's element, the smallest change at 1.
[[nodiscard]] layer_report check_layer(layer_probe& layer, const tensor_shape& input, const check_layer_options& options,
                                       double epsilon);

}  // namespace detail

/// Runs a layer on random microbatches of a shape, in the ways that a training does, and lists what it finds wrong: whether
/// outputs and gradients have their shapes, backward adds to gradients that agree with finite differences, halves add up to
/// backward, contexts share nothing, and tensors stay where they are. The layer is checked with the parameters that it has; it is
/// moved in, as into a stage. Nothing is found where everything is zero: give biases other values first.
/// Requires: the layer computes in host memory. Double elements tell small mistakes from rounding, floats only large ones.
/// Returns: every mistake that can be told; those that would follow from another one are left out.
/// Throws: nothing that the layer throws: that is a finding.
/// Complexity: O(elements * tensors) forwards.
/// Determinism: equal seeds give equal reports, for layers that are deterministic.
/// Example:
///   const auto report = check_layer<tensor>(gate(3), {1, 8}, {.output = {1, 8}});
///   if (!report.ok()) std::puts(report.text().c_str());
template <class Tensor, class Layer>
[[nodiscard]] layer_report check_layer(Layer layer, const tensor_shape& input, const check_layer_options& options = {}) {
  detail::require_layer<Layer, Tensor>();
  using element = typename tensor_traits<Tensor>::element;
  static_assert(tensor_traits<Tensor>::space != memory_space::device && detail::host_number<element>,
                "layers are checked in host memory, with elements that are numbers");
  double epsilon = 1.0 / 256;  // of the smallest floats in use
  if constexpr (std::is_floating_point_v<element>) epsilon = static_cast<double>(std::numeric_limits<element>::epsilon());
  detail::layer_probe_of<Tensor, Layer> probe(std::move(layer));
  return detail::check_layer(probe, input, options, epsilon);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layer/check_layer.ipp>
#endif
