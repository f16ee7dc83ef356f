// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/device/steady_time.hpp>

namespace hetsched {

HETSCHED_INLINE double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

HETSCHED_INLINE deadline_time deadline_in(double seconds) {
  const std::chrono::duration<double> bounded(seconds > 0 ? seconds < 1e9 ? seconds : 1e9 : 0);
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<deadline_time::duration>(bounded);
}

}  // namespace hetsched
