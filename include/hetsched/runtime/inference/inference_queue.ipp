// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/inference/inference_queue.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::optional<inference_result> early_end(inference_desk& desk, const inference_slip& s, deadline_time now) {
  const std::lock_guard lock(desk.guard);
  if (s.cancelled) return inference_result{inference_end::cancelled, "cancelled"};
  if (s.until <= now) return inference_result{inference_end::expired, "not finished at its deadline"};
  return std::nullopt;
}

HETSCHED_INLINE void tell(inference_desk& desk, inference_slip& s, inference_result r) {
  {
    const std::lock_guard lock(desk.guard);
    if (s.result) return;
    s.result = std::move(r);
  }
  desk.changed.notify_all();
}

HETSCHED_INLINE void inference_desk::ring() {
  {
    const std::lock_guard lock(guard);
    has_rung = true;
  }
  rung.notify_all();
}

HETSCHED_INLINE void inference_desk::wait(deadline_time until) {
  std::unique_lock lock(guard);
  rung.wait_until(lock, until, [&] { return has_rung; });
  has_rung = false;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void inference_ticket::cancel() {
  {
    const std::lock_guard lock(desk_->guard);
    slip_->cancelled = true;
  }
  desk_->ring();
}

HETSCHED_INLINE std::optional<inference_result> inference_ticket::wait_for(double seconds) const {
  const auto until = deadline_in(seconds);
  std::unique_lock lock(desk_->guard);
  desk_->changed.wait_until(lock, until, [&] { return slip_->result.has_value(); });
  return slip_->result;
}

HETSCHED_INLINE inference_result inference_ticket::wait() const {
  std::unique_lock lock(desk_->guard);
  desk_->changed.wait(lock, [&] { return slip_->result.has_value(); });
  return *slip_->result;
}

}  // namespace hetsched
