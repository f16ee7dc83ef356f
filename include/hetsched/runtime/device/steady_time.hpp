// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/device/device_backend_test.cpp.

#include <chrono>

namespace hetsched {

using deadline_time = std::chrono::steady_clock::time_point;

/// Seconds on the clock of deadlines.
[[nodiscard]] inline double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The deadline in so many seconds, at most some decades away.
[[nodiscard]] inline deadline_time deadline_in(double seconds) {
  const std::chrono::duration<double> bounded(seconds > 0 ? seconds < 1e9 ? seconds : 1e9 : 0);
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<deadline_time::duration>(bounded);
}

}  // namespace hetsched
