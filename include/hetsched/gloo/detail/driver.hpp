// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include <hetsched/gloo/detail/socket_watch.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// Who waits for sockets: a thread of its own, or whoever waits for something that they bring, which saves waking the one to wake
/// the other. The latter only while no long tensor is on its way, as these are to go on while the rank computes. One at a time;
/// all members are called with the caller's mutex held.
class driver {
 public:
  using lock = std::unique_lock<std::mutex>;
  driver() = default;
  explicit driver(std::uint64_t number_of_alarm) : watch(number_of_alarm) {}

  socket_watch watch;

  /// Whether a caller may turn().
  [[nodiscard]] bool may_turn() const { return parked_ && long_ == 0 && !never_; }
  /// A caller would like to.
  void would_turn() {
    if (never_ || long_ > 0 || wanted_) return;
    wanted_ = true;
    watch.alarm();
  }
  /// Callers wait elsewhere, too: the thread stays.
  void keep_thread() {
    never_ = true;
    let_go();
  }
  void begin_long() {
    ++long_;
    let_go();
  }
  void end_long() { --long_; }
  void drop_long() { long_ = 0; }
  /// Something has happened that sockets do not tell.
  void wake() const {
    if (turning_) watch.alarm();
  }

  /// Waits for sockets in a caller, at most until then and so many ms (-1: any number), and has what has happened handled.
  /// Requires: may_turn().
  template <class Handle>
  void turn(lock& hold, deadline_time until, int limit_ms, const Handle& handle) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    const int ms = static_cast<int>(std::clamp<long long>(left, 0, limit_ms < 0 ? 60'000 : limit_ms));
    turning_ = true;
    hold.unlock();
    const auto happened = watch.wait(ms);
    hold.lock();
    turning_ = false;
    last_ = clock::now();
    handle(happened);
    if (!wanted_) idle_.notify_one();
  }

  /// In the thread: returns when it is its turn, or when `stopped`. `hand_over`: called when callers may turn().
  template <class HandOver>
  void park(lock& hold, const bool& stopped, const HandOver& hand_over) {
    constexpr auto pause = std::chrono::milliseconds(5);  // then a caller has something else to do
    parked_ = wanted_;
    if (parked_) hand_over();
    last_ = clock::now();
    while (parked_ && !stopped) {
      idle_.wait_for(hold, pause, [&] { return stopped || (!wanted_ && !turning_); });
      if (!turning_ && (!wanted_ || clock::now() - last_ >= pause)) parked_ = wanted_ = false;
    }
  }
  void stop() {
    watch.alarm();
    idle_.notify_one();
  }

 private:
  using clock = std::chrono::steady_clock;
  void let_go() {
    if (!wanted_) return;
    wanted_ = false;
    if (!turning_) idle_.notify_one();
  }

  std::condition_variable idle_;  ///< for the thread
  clock::time_point last_{};      ///< turn of a caller
  bool wanted_ = false;           ///< by a caller
  bool parked_ = false;           ///< the thread waits until callers have something else to do
  bool turning_ = false;          ///< a caller waits for sockets
  bool never_ = false;
  int long_ = 0;  ///< tensors on their way
};

}  // namespace hetsched::detail
