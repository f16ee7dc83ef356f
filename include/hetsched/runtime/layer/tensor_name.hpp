// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/layer_test.cpp.

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace hetsched {

/// What a layer calls one of its parameters or buffers ("attn.weight"), and the number of that among them. One may have several
/// names: checkpoints have it under the least of them, whatever their order, and find it under each.
using tensor_name = std::pair<std::string, int>;

namespace detail {

template <class Names>
[[nodiscard]] std::vector<tensor_name> listed(Names&& names) {
  return {std::begin(names), std::end(names)};
}
/// What the layer's parameter_names() returns, if it has that.
template <class L>
[[nodiscard]] std::vector<tensor_name> parameter_names([[maybe_unused]] L& layer) {
  if constexpr (requires { layer.parameter_names(); }) return listed(layer.parameter_names());
  return {};
}
template <class L>
[[nodiscard]] std::vector<tensor_name> buffer_names([[maybe_unused]] L& layer) {
  if constexpr (requires { layer.buffer_names(); }) return listed(layer.buffer_names());
  return {};
}

/// The tensors of a layer of layers: how many each has, and what it calls them.
struct names_of_layers {
  std::vector<std::size_t> counts;
  std::vector<std::vector<tensor_name>> names;

  template <class Range>
  void add(Range&& tensors, std::vector<tensor_name> own) {
    counts.push_back(static_cast<std::size_t>(std::distance(std::begin(tensors), std::end(tensors))));
    names.push_back(std::move(own));
  }
  /// Each behind the number of its layer, "2.weight"; those of layers without names by their numbers. None if no layer has names.
  [[nodiscard]] std::vector<tensor_name> joined() const;
};

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layer/tensor_name.ipp>
#endif
