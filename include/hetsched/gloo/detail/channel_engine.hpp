// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/gloo/detail/line_traffic.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/stranger.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/standstill.hpp>

namespace hetsched::detail {

/// The channels of one rank. What fits into the system's memory at once is written by whoever posts it. What comes, and the rest,
/// is moved by whoever waits for it, or by a thread while nobody does. Sockets never block.
///
/// A small tensor goes unasked, behind a header that says what it is, and waits at the other end for its receive, in one of a few
/// blocks. A longer one goes from memory to memory when its receive has been posted and the sender has been told so; any
/// number of them may be under way. Where no more may go unasked, small ones are announced, and asked for as longer ones are.
/// Channels are known by their edges, so the ends may open them in any order.
///
/// One mutex guards everything but `ended`. Nothing is allocated per tensor, once queues and blocks are as many as are needed.
class channel_engine : line_traffic {
 public:
  using lock = std::unique_lock<std::mutex>;

  explicit channel_engine(gloo_mesh mesh) : line_traffic(std::move(mesh)) {
    if (mesh_.ranks == 1) return;
    const no_signals in_thread;
    worker_ = std::thread([this] { work(); });
  }

  channel_engine(const channel_engine&) = delete;
  channel_engine& operator=(const channel_engine&) = delete;

  /// Waits until all peers have what was sent to them, at most 5 s (1 s once aborted), and ends the thread. Aborts
  /// first if an exception ends this rank, or a gather has come to its deadline.
  ~channel_engine();

  [[nodiscard]] int rank() const { return mesh_.rank; }
  [[nodiscard]] int ranks() const { return mesh_.ranks; }
  [[nodiscard]] const gloo_mesh& mesh() const { return mesh_; }

  /// So far.
  [[nodiscard]] std::vector<stranger> strangers() const {
    const lock hold(guard_);
    return mesh_.door ? mesh_.door->strangers() : mesh_.strangers;
  }

  [[nodiscard]] channel_end& open(const edge& e) {
    HETSCHED_EXPECTS(e.from != e.to && (e.from == mesh_.rank || e.to == mesh_.rank));
    HETSCHED_EXPECTS(e.from >= 0 && e.from < mesh_.ranks && e.to >= 0 && e.to < mesh_.ranks);
    const lock hold(guard_);
    need(e.from == mesh_.rank ? e.to : e.from);
    return find(e);
  }

  /// Waits until all ranks are connected with their neighbours, and learns where others can be called.
  /// Throws: error if that is not in time.
  void meet_all(deadline_time until);

  /// Of `t`, data and note.{bytes, elements, shape} are set.
  void post(channel_end& c, gloo_transfer& t, const stamp& s);

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    lock hold(guard_);
    for (auto w = stood_still_.begin(until); !bell_.has_rung(sends) && !aborted_;) {
      if (is_over(w)) return wait_result::deadline;
      if (!turn(hold, w.next())) bell_.wait(hold, w.next(), sends);
    }
    bell_.take(sends);
    return aborted_ ? wait_result::aborted : wait_result::progress;
  }

  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until);

  /// See asking_plane.
  [[nodiscard]] wait_result ask();

  void on_wake(std::function<void()> ring) {
    const lock hold(guard_);
    bell_.also(std::move(ring));
    drive_.keep_thread();
  }

  /// When it returns, no tensor or transfer is touched any more.
  void abort(const std::string& reason) {
    const lock hold(guard_);
    fail(reason.empty() ? "aborted" : reason);
  }

  [[nodiscard]] std::uint64_t bytes_sent() const {
    const lock hold(guard_);
    return bytes_sent_;
  }

  [[nodiscard]] std::string failure() const {
    const lock hold(guard_);
    return reason_;
  }

 private:
  /// Waits for sockets in place of the thread, if it may; false: it has done nothing.
  bool turn(lock& hold, deadline_time until) {
    if (!drive_.may_turn()) {
      drive_.would_turn();
      return false;
    }
    drive_.turn(hold, until, look_after_connections(), [this](auto happened) { handle(happened); });
    return true;
  }
  /// Whether something has come about in time.
  template <class Done>
  bool await(lock& hold, deadline_time until, const Done& done) {
    for (auto w = stood_still_.begin(until); !done();) {
      if (is_over(w)) return false;
      if (!turn(hold, w.next())) happened_.wait_until(hold, w.next());
    }
    return true;
  }
  [[nodiscard]] bool is_over(standstill::wait& w);

  void work();

  mutable std::mutex guard_;
  std::uint64_t round_ = 0;
  std::uint64_t questions_ = 0;  ///< whether the others are there
  standstill stood_still_;
  int exceptions_ = std::uncaught_exceptions();  ///< under way since before
  bool stopped_ = false;
  std::thread worker_;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/channel_engine.ipp>
#endif
