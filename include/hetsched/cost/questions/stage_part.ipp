// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void take_slower(stage_cost& all, const stage_cost& part) {
  if (part.backward_s > all.backward_s) {
    all.backward_s = part.backward_s;
    all.weight_backward_s = part.weight_backward_s;
  }
  all.forward_s = std::max(all.forward_s, part.forward_s);
  all.weight_bytes = std::max(all.weight_bytes, part.weight_bytes);
  all.activation_bytes = std::max(all.activation_bytes, part.activation_bytes);
  all.temporary_bytes = std::max(all.temporary_bytes, part.temporary_bytes);
}

}  // namespace hetsched::detail
