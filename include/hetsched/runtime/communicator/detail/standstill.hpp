// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <hetsched/runtime/device/steady_time.hpp>

namespace hetsched::detail {

/// Deadlines that do not count the time in which this process itself stood still, as a job does that is suspended, or a virtual
/// machine that is paused. Somebody looks at the clock every quarter of a second, whoever waits or, while nobody does, a thread;
/// it shows where that takes more than one.
class standstill {
 public:
  explicit standstill(deadline_time now = std::chrono::steady_clock::now()) : alive_(now) {}

  /// One wait, of many short ones.
  struct wait {
    deadline_time until, seen;
    /// For the next short one.
    [[nodiscard]] deadline_time next() const { return std::min(until, seen + tick); }
  };

  /// How often somebody is to look.
  static constexpr std::chrono::milliseconds tick{250};

  /// The process is alive.
  void look(deadline_time now = std::chrono::steady_clock::now()) {
    if (now - alive_ > tick + late) {
      news_ = std::chrono::duration<double>(now - alive_).count();
      from_ = alive_;
      to_ = now;
    }
    alive_ = now;
  }

  /// A deadline that passed while the process stood still, be it right before, is moved by as long.
  [[nodiscard]] wait begin(deadline_time until, deadline_time now = std::chrono::steady_clock::now()) {
    look(now);
    return {from_ < until && until <= to_ ? until + (to_ - from_) : until, now};
  }

  /// To be called between short waits. Returns whether the deadline has come.
  [[nodiscard]] bool is_over(wait& w, deadline_time now = std::chrono::steady_clock::now()) {
    look(now);
    if (to_ > w.seen) w.until += to_ - from_;  // whoever saw it first
    w.seen = now;
    return now >= w.until;
  }

  /// For how many seconds the process has stood still, if that has not been told yet.
  [[nodiscard]] std::optional<double> news() { return std::exchange(news_, {}); }

 private:
  static constexpr std::chrono::milliseconds late{750};
  deadline_time alive_;
  deadline_time from_{}, to_{};  ///< it stood still the last time
  std::optional<double> news_{};
};

}  // namespace hetsched::detail
