// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/bell.hpp>
#include <hetsched/gloo/detail/channel_end.hpp>
#include <hetsched/gloo/detail/driver.hpp>
#include <hetsched/gloo/detail/frame.hpp>
#include <hetsched/gloo/detail/introduction.hpp>
#include <hetsched/gloo/detail/neighbours.hpp>
#include <hetsched/gloo/detail/peer_state.hpp>
#include <hetsched/gloo/detail/socket_watch.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// What goes over the connections of one rank: frames and tensors, out and in. All members are called with the mutex of the
/// channel_engine held that has this.
class line_traffic {
 protected:
  static constexpr std::uint64_t key_of_alarm = ~std::uint64_t{0}, key_of_door = key_of_alarm - 1;
  static constexpr std::size_t heard_at_once = 65536;
  static constexpr std::size_t moved_at_once = std::size_t{1} << 18;  ///< while others wait for the mutex

  [[nodiscard]] int socket_of(int p, line_of line) const { return at(mesh_.lines, p)[line].number(); }
  [[nodiscard]] static std::uint64_t key_of(int p, line_of line) { return lines_per_pair * as_size(p) + line; }
  /// Adjusts what is watched of a connection.
  void watch(int p, line_of line) {
    const auto& peer = at(peers_, p);
    const bool listens = !peer.down && !peer.mute, talks = line == control_line ? peer.waits_to_say : peer.waits_to_send;
    drive_.watch.change(socket_of(p, line), key_of(p, line), listens, talks);
  }

  channel_end& find(const edge& e) { return channels_.find(e, mesh_.rank); }

  explicit line_traffic(gloo_mesh mesh);

  void end(gloo_transfer& t, bool of_send) {
    if (t.header.note.bytes > small_tensor) drive_.end_long();
    t.end_s = steady_now_s();
    t.ended.store(true, std::memory_order_release);  // from now on it is its owner's
    bell_.ring(of_send, working_);
    drive_.wake();
  }

  void fail(const std::string& reason);

  // Connections.

  /// The neighbour through which all that is not sent directly goes to a rank, and comes from it.
  [[nodiscard]] int way_to(int p) const { return next_to(mesh_.rank, p, mesh_.ranks); }
  [[nodiscard]] bool is_other(std::uint64_t rank) const {
    return rank < as_size(mesh_.ranks) && rank != static_cast<std::uint64_t>(mesh_.rank);
  }
  /// Whether what a neighbour tells of a rank can have come by it.
  [[nodiscard]] bool comes_by(int p, std::uint64_t rank) const { return is_other(rank) && way_to(static_cast<int>(rank)) == p; }
  /// A rank has been connected.
  void meet(int p);
  /// Has a rank connected, if it is not: the higher one calls.
  void need(int p);
  /// Whether there is something to be sent to or received from a rank.
  [[nodiscard]] bool is_used(int p) const {
    const auto& peer = at(peers_, p);
    return peer.outgoing.first || peer.from || std::any_of(channels_.all.begin(), channels_.all.end(), [p](const auto& c) {
             return c.peer == p && c.transfers.first;
           });
  }
  /// Goes on with connections that are being made; returns when to look again, in ms (-1: when something happens).
  int look_at_door();
  /// Has all other neighbours told what one has told; they have to be written to.
  void pass_on(int p, frame_kind kind, const char* body, std::size_t bytes) {
    if (is_mesh(mesh_.ranks)) return;
    for (const int other : neighbours_)
      if (auto& peer = at(peers_, other); other != p && !peer.down)
        append_frame(peer.to_say, kind, peer.told = peer.unasked_got, body, bytes);
  }
  void write_to_neighbours() {
    for (const int p : neighbours_)
      if (auto& peer = at(peers_, p); !peer.down && !peer.waits_to_say && peer.has_to_say()) write_frames(p);
  }

  /// Nothing can be said to or heard from a rank any more.
  void lose(int p, const std::string& why);
  /// The connection for tensors is broken: the peer's frames tell why, if they come soon.
  void break_off(int p, const std::string& why) {
    auto& peer = at(peers_, p);
    if (peer.down || peer.broken_at) return;
    peer.broken_at = std::chrono::steady_clock::now();
    peer.broken_why = why;
    peer.waits_to_send = false;
    drive_.watch.remove(socket_of(p, data_line));
    drive_.watch.alarm();  // somebody is to count the time
  }
  void distrust(int p, const char* what, const char* fault) {
    at(peers_, p).mute = true;
    fail(std::string(what) + " from rank " + std::to_string(p) + ' ' + fault + ": is it of the same program?");
    watch(p, control_line);
  }

  // Frames.

  template <class First, class Second = char>
  void say(int p, frame_kind kind, const First* first, std::size_t firsts, const Second* second = nullptr,
           std::size_t seconds = 0) {
    auto& peer = at(peers_, p);
    if (peer.down) return;
    append_frame(peer.to_say, kind, peer.told = peer.unasked_got, first, firsts, second, seconds);
    if (!peer.waits_to_say) write_frames(p);
  }
  void write_frames(int p);
  /// In a tree, it leaves with all that is said to that neighbour at once: where all ask, each has as many as the square of the
  /// ranks to send on.
  void answer(int p, const inquiry& told) {
    auto& peer = at(peers_, p);
    if (peer.down) return;
    append_frame(peer.to_say, frame_kind::answer, peer.told = peer.unasked_got, &told, 1);
    if (is_mesh(mesh_.ranks) && !peer.waits_to_say) write_frames(p);
  }

  /// In a tree, who has left answers no more, nor does who is behind it: none of them is to blame.
  void answer_behind(int gone, inquiry question) {
    for (int r = 0; r < mesh_.ranks && !is_mesh(mesh_.ranks); ++r) {
      if (r == mesh_.rank || way_to(r) != gone) continue;
      question.answerer = static_cast<std::uint32_t>(r);
      answer(way_to(static_cast<int>(question.asker)), question);
    }
  }

  void answer_leaving(int p) {
    auto& peer = at(peers_, p);
    if (!peer.leaving || peer.answered || (!aborted_ && peer.tensors_got < peer.tensors_due)) return;
    peer.answered = true;
    say<char>(p, frame_kind::released, nullptr, 0);
  }

  void acknowledge(int p, std::uint64_t unasked) {
    auto& peer = at(peers_, p);
    if (unasked <= peer.acknowledged) return;
    const auto before = std::exchange(peer.acknowledged, unasked);
    if (peer.unasked_sent < before + most_unasked || aborted_) return;
    for (auto& c : channels_.all)
      if (c.peer == p && c.sending) send_what_may_go(c);
  }

  void take_frame(int p, const char* frame);
  void take_numbers(int p, const char* body, std::size_t bytes);
  void take_question(int p, const char* body, std::size_t bytes);
  void take_answer(int p, const char* body);

  /// A tensor waits at the other end that this one has posted a receive for, which has not been told.
  void ask_for(channel_end& c, std::uint64_t number) {
    const auto* const t = c.transfers.find(number);
    if (t && t->header.note.bytes <= small_tensor) say(c.peer, frame_kind::receive_posted, &t->header.note, 1);
  }

  void read_frames(int p);

  // Tensors out.

  void send_what_may_go(channel_end& c);

  /// Writes what the system takes; of long tensors, a part. The thread goes on with the rest.
  void write_tensors(int p);

  // Tensors in.

  void took_unasked(int p) {
    auto& peer = at(peers_, p);
    if (++peer.unasked_got >= peer.told + most_unasked / 2) say<char>(p, frame_kind::acknowledge, nullptr, 0);
  }

  /// Gives the receives of a channel what has come before them.
  void take_early(channel_end& c);

  /// Finds out where a tensor that comes belongs. False: nowhere.
  [[nodiscard]] bool take_header(int p, const tensor_header& header);

  void finish_tensor(int p);

  /// Gives what has been heard to the tensors that it is of.
  void share_out(int p);

  void read_tensors(int p);

  // Both.

  /// Fails where tensors have ended for a second, and goes on with connections; returns when to look again, in ms.
  int look_after_connections();

  void handle(std::span<const epoll_event> happened);

  gloo_mesh mesh_;
  driver drive_;
  std::vector<int> neighbours_, met_;   ///< met: all that are connected
  std::vector<std::string> addresses_;  ///< of all ranks' doors; empty where all are neighbours
  std::vector<peer_state> peers_;
  channel_ends channels_;
  early_blocks blocks_;
  bell bell_;
  std::condition_variable happened_;  ///< what gather, ask and the end wait for
  bool working_ = false;              ///< what has come is being handled
  bool aborted_ = false;
  std::string reason_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/line_traffic.ipp>
#endif
