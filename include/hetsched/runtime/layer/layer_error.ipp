// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/layer/layer_error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void throw_layer_error(const std::string& here, int rank, int layer, bool in_loss, const action& doing) {
  using enum action_kind;
  std::string what = "an exception of unknown type";
  try {
    throw;
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  const char* const did = in_loss                        ? "the loss"
                          : doing.kind == forward        ? "forward"
                          : doing.kind == recompute      ? "forward once more"
                          : doing.kind == backward       ? "backward"
                          : doing.kind == backward_input ? "backward_input"
                                                         : "backward_weight";
  auto text = here + ": " + to_text(doing) + " (stage " + std::to_string(doing.stage);
  if (layer != no_layer) text += ", layer " + std::to_string(layer);
  text += ", " + std::string(did) + " of microbatch " + std::to_string(doing.microbatch) + ") failed: " + what;
  std::throw_with_nested(layer_error(text, rank, layer, doing));
}

}  // namespace hetsched::detail
