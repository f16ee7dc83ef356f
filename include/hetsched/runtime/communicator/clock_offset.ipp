// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/communicator/clock_offset.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

HETSCHED_INLINE void shift(timeline& t, double seconds) {
  for (auto& a : t.actions) {
    a.start_s += seconds;
    a.end_s += seconds;
  }
}

}  // namespace hetsched
