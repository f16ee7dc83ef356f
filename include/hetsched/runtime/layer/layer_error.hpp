// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// A layer or loss that threw, or that made a tensor of another shape than it had to, or one whose elements are not contiguous.
/// The text says where, and the first cause; the exception itself is nested in this one (std::rethrow_if_nested).
class layer_error : public error {
 public:
  layer_error(const std::string& text, int r, int l, const action& a) : error(text), rank(r), layer(l), doing(a) {}
  int rank;      ///< of the communicator
  int layer;     ///< of the model, as the stage numbers its layers; -1: the loss, or a stage that does not tell
  action doing;  ///< with stage and microbatch
};

namespace detail {

inline constexpr int no_layer = -1;

/// The layer that a stage called last.
template <class Stage>
[[nodiscard]] int layer_under_way(const Stage& s) {
  if constexpr (requires { s.layer_under_way(); })
    return s.layer_under_way();
  else
    return no_layer;
}

/// Throws a layer_error in which the exception under way is nested. `here`: the rank and step.
[[noreturn]] void throw_layer_error(const std::string& here, int rank, int layer, bool in_loss, const action& doing);

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layer/layer_error.ipp>
#endif
