// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <hetsched/runtime/device/steady_time.hpp>

namespace hetsched::detail {

/// Deadlines that do not count the time in which this process itself stood still, as a job does that is suspended, or a virtual
/// machine that is paused. It shows where a wait of a quarter of a second takes more than one.
class standstill {
 public:
  /// One wait, of many short ones.
  struct wait {
    deadline_time until, seen;
    /// For the next short one.
    [[nodiscard]] deadline_time next() const { return std::min(until, seen + tick); }
  };

  /// A deadline that passed while the process stood still is moved by as long.
  [[nodiscard]] wait begin(deadline_time until, deadline_time now = std::chrono::steady_clock::now()) const {
    return {from_ < until && until <= to_ ? until + (to_ - from_) : until, now};
  }

  /// To be called between short waits. Returns whether the deadline has come.
  [[nodiscard]] bool is_over(wait& w, deadline_time now = std::chrono::steady_clock::now()) {
    if (now - w.seen > tick + late) {
      if (w.seen >= to_) news_ = std::chrono::duration<double>(now - w.seen).count();  // not what another wait has seen, too
      from_ = w.seen;
      to_ = now;
      w.until += now - w.seen;
    }
    w.seen = now;
    return now >= w.until;
  }

  /// For how many seconds the process has stood still, if that has not been told yet.
  [[nodiscard]] std::optional<double> news() { return std::exchange(news_, {}); }

 private:
  static constexpr std::chrono::milliseconds tick{250}, late{750};
  deadline_time from_{}, to_{};  ///< the last time
  std::optional<double> news_{};
};

}  // namespace hetsched::detail
