// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// Tells whoever waits that a receive or a send has ended. All but ring_late() is called with the caller's mutex held.
class bell {
 public:
  [[nodiscard]] bool has_rung(bool sends) const { return received_ || (sends && sent_); }
  /// Until it may have rung, or the deadline.
  void wait(std::unique_lock<std::mutex>& hold, deadline_time until, bool sends) {
    waits_ = sends ? for_all : for_receives;
    changed_.wait_until(hold, until);
    waits_ = for_nothing;
  }
  void take(bool sends) {
    received_ = false;
    if (sends) sent_ = false;
  }
  /// `late`: whoever waits is woken by ring_late(), which the same thread calls once it has let go of the mutex.
  void ring(bool of_send, bool late);
  void ring_late() {
    if (std::exchange(late_, false)) changed_.notify_one();
  }
  /// Has whoever waits look again.
  void nudge() { changed_.notify_all(); }
  void ring_for_all() {
    changed_.notify_all();
    if (also_) also_();
  }
  /// What is called, too, with the mutex held.
  void also(std::function<void()> ring) { also_ = std::move(ring); }

 private:
  enum purpose : std::uint8_t { for_nothing, for_receives, for_all };
  std::condition_variable changed_;
  std::function<void()> also_;
  bool received_ = false, sent_ = false;  ///< since the last wait for them
  bool late_ = false;
  purpose waits_ = for_nothing;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/bell.ipp>
#endif
