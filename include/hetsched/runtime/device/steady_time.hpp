// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/device/device_backend_test.cpp.

#include <chrono>

namespace hetsched {

using deadline_time = std::chrono::steady_clock::time_point;

/// Seconds on the clock of deadlines.
[[nodiscard]] double steady_now_s();

/// The deadline in so many seconds, at most some decades away.
[[nodiscard]] deadline_time deadline_in(double seconds);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/device/steady_time.ipp>
#endif
