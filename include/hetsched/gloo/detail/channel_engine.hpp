// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
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
#include <hetsched/runtime/communicator/communicator.hpp>

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

  /// Waits until all peers have what was sent to them, at most 5 s (1 s once aborted), and ends the thread.
  ~channel_engine() {
    if (mesh_.ranks == 1) return;
    {
      lock hold(guard_);
      for (int p = 0; p < mesh_.ranks; ++p)
        if (p != mesh_.rank) say(p, frame_kind::leaving, &peers_[at(p)].tensors_sent, 1);
      (void)await(hold, deadline_in(aborted_ ? 1 : 5), [&] {
        return first_without(peers_, [&](const peer_state& peer) {
                 const bool silent = aborted_ && peer.answered_to < questions_;  // it does not answer this either
                 return peer.down || peer.released || silent;
               }) < 0;
      });
      stopped_ = true;
      drive_.stop();
    }
    worker_.join();
  }

  [[nodiscard]] int rank() const { return mesh_.rank; }
  [[nodiscard]] int ranks() const { return mesh_.ranks; }
  [[nodiscard]] const gloo_mesh& mesh() const { return mesh_; }

  [[nodiscard]] channel_end& open(const edge& e) {
    HETSCHED_EXPECTS(e.from != e.to && (e.from == mesh_.rank || e.to == mesh_.rank));
    HETSCHED_EXPECTS(e.from >= 0 && e.from < mesh_.ranks && e.to >= 0 && e.to < mesh_.ranks);
    const lock hold(guard_);
    return find(e);
  }

  /// Of `t`, data and note.{bytes, elements, shape} are set.
  void post(channel_end& c, gloo_transfer& t, const stamp& s) {
    t.ended.store(false, std::memory_order_relaxed);
    t.written = 0;
    auto& n = t.header.note;
    n.tell(s, c.where);
    const lock hold(guard_);
    if (aborted_) return;
    n.number = c.posted++;
    c.transfers.push(t);
    if (n.bytes > small_tensor) drive_.begin_long();
    if (c.sending) {
      send_what_may_go(c);
    } else {
      if (n.bytes > small_tensor || (n.number + 1 == c.announced && n.number >= c.moved))
        say(c.peer, frame_kind::receive_posted, &n, 1);
      take_early(c);
    }
    const auto& peer = peers_[at(c.peer)];
    if (!aborted_ && peer.down && (c.transfers.first || peer.outgoing.first)) fail(lost_text(peers_, c.peer, {}));
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    lock hold(guard_);
    while (!bell_.has_rung(sends) && !aborted_) {
      if (std::chrono::steady_clock::now() >= until) return wait_result::deadline;
      if (!turn(hold, until)) bell_.wait(hold, until, sends);
    }
    bell_.take(sends);
    return aborted_ ? wait_result::aborted : wait_result::progress;
  }

  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    lock hold(guard_);
    if (aborted_) return wait_result::aborted;
    const std::uint64_t round = ++round_;
    for (int p = 0; p < mesh_.ranks; ++p) {
      if (p == mesh_.rank) continue;
      for (std::size_t first = 0; first == 0 || first < mine.size(); first += numbers_per_frame) {
        const gathered_numbers part{.round = round, .all = mine.size()};
        const std::size_t count = std::min(numbers_per_frame, mine.size() - first);
        say(p, frame_kind::numbers, &part, 1, mine.data() + first, count);
      }
    }
    int missing = -1;
    const auto has_brought = [round](peer_state& peer) { return peer.has_brought(round); };
    const auto look = [&] {
      missing = first_without(peers_, has_brought);
      return missing < 0 || peers_[at(missing)].down;
    };
    const bool in_time = await(hold, until, [&] { return look() || aborted_; });
    // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
    if (aborted_ && missing >= 0)
      (void)await(hold, std::min(until, deadline_in(1)), [&] { return look() || peers_[at(missing)].gave_up; });
    if (missing >= 0) {
      if (in_time && !aborted_) fail(lost_text(peers_, missing, {}));
      if (!aborted_) reason_ = ranks_without(peers_, has_brought) + " not answered in time";
      return aborted_ ? wait_result::aborted : wait_result::deadline;
    }
    take_round(peers_, mine, all);
    return wait_result::progress;
  }

  /// See asking_plane.
  [[nodiscard]] wait_result ask() {
    lock hold(guard_);
    const std::uint64_t question = ++questions_;
    for (int p = 0; p < mesh_.ranks && !aborted_; ++p)
      if (p != mesh_.rank) say(p, frame_kind::ask, &question, 1);
    const auto has_answered = [question](const peer_state& peer) { return peer.down || peer.answered_to >= question; };
    (void)await(hold, deadline_in(1), [&] { return aborted_ || first_without(peers_, has_answered) < 0; });
    if (first_without(peers_, has_answered) >= 0) fail(ranks_without(peers_, has_answered) + " not answered for a second");
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }

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
    drive_.turn(hold, until, look_after_broken(), [this](auto happened) { handle(happened); });
    return true;
  }
  /// Whether something has come about in time.
  template <class Done>
  bool await(lock& hold, deadline_time until, const Done& done) {
    while (!done()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      if (!turn(hold, until)) happened_.wait_until(hold, until);
    }
    return true;
  }

  void work() {
    lock hold(guard_);
    while (!stopped_) {
      drive_.park(hold, stopped_, [&] {
        bell_.nudge();
        happened_.notify_all();
      });
      const int limit_ms = look_after_broken();
      hold.unlock();
      bell_.ring_late();
      const auto happened = drive_.watch.wait(limit_ms);
      hold.lock();
      handle(happened);
    }
  }

  mutable std::mutex guard_;
  std::uint64_t round_ = 0;
  std::uint64_t questions_ = 0;  ///< whether the others are there
  bool stopped_ = false;
  std::thread worker_;
};

}  // namespace hetsched::detail
