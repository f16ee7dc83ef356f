// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/layer_test.cpp.

#include <concepts>
#include <cstddef>
#include <iterator>
#include <vector>

#include <hetsched/core/index.hpp>

namespace hetsched {

/// How the ranks of a tensor axis, and of an expert axis, share a parameter.
struct parameter_cut {
  int dimension = -1;                ///< cut evenly over the axis, the parts in the order of its ranks; -1: all have it whole
  bool partial_over_tensor = false;  ///< the gradient of a whole one is the sum over the axis of what its ranks have
  /// Where several matrices lie side by side in that dimension: the extent of each on this rank, each cut by itself (queries,
  /// keys and values; gate and up). Empty: one.
  std::vector<std::size_t> pieces = {};
  /// Dimension 0 is cut evenly over the expert axis, in the order of its ranks. Then no other cut is of that dimension.
  bool over_experts = false;
  friend bool operator==(const parameter_cut&, const parameter_cut&) = default;
};

namespace detail {

template <class L>
concept says_cuts = requires(L& layer) {
  { *std::begin(layer.parameter_cuts()) } -> std::convertible_to<parameter_cut>;
  std::end(layer.parameter_cuts());
};

/// One per parameter of the layer: what its member parameter_cuts() returns, or whole ones if it has none.
template <class L>
[[nodiscard]] std::vector<parameter_cut> parameter_cuts(L& layer) {
  if constexpr (says_cuts<L>) {
    auto&& cuts = layer.parameter_cuts();
    return std::vector<parameter_cut>(std::begin(cuts), std::end(cuts));
  } else {
    auto&& all = layer.parameters();
    return std::vector<parameter_cut>(as_size(std::distance(std::begin(all), std::end(all))));
  }
}

}  // namespace detail
}  // namespace hetsched
