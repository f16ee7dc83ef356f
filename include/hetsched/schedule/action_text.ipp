// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>

namespace hetsched {

HETSCHED_INLINE std::string to_text(const action& a) {
  std::string text = std::to_string(a.stage);
  const auto kind = as_size(a.kind);
  text += kind < action_kinds ? detail::kind_names[kind] : "?";
  if (a.microbatch != no_microbatch) text += std::to_string(a.microbatch);
  if (a.direction != 0) {
    text += 'r';
    text += std::to_string(a.direction);
  }
  return text;
}

}  // namespace hetsched
