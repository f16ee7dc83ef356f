// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/gloo/bell.hpp>
#include <hetsched/gloo/channel_end.hpp>
#include <hetsched/gloo/frame.hpp>
#include <hetsched/gloo/introduction.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/peer_state.hpp>
#include <hetsched/gloo/socket_watch.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// The channels of one rank. One thread moves what comes and what does not fit into the system's memory at once; what fits
/// is written by whoever posts it. Sockets never block.
///
/// A small tensor goes unasked, behind a header that says what it is, and waits at the other end for its receive, in one of a few
/// blocks. A longer one goes from memory to memory when its receive has been posted and the sender has been told so; any
/// number of them may be under way. Where no more may go unasked, small ones are announced, and asked for as longer ones are.
/// Channels are known by their edges, so the ends may open them in any order.
///
/// One mutex guards everything but `ended`. Nothing is allocated per tensor, once queues and blocks are as many as are needed.
class channel_engine {
 public:
  using lock = std::unique_lock<std::mutex>;

  explicit channel_engine(gloo_mesh mesh) : mesh_(std::move(mesh)), peers_(static_cast<std::size_t>(mesh_.ranks)) {
    if (mesh_.ranks == 1) return;
    watch_ = socket_watch(key_of_alarm);
    for (int p = 0; p < mesh_.ranks; ++p) {
      if (p == mesh_.rank) continue;
      auto& peer = peers_[at(p)];
      peer.there = true;
      peer.frames.memory.resize(8 * longest_frame);
      peer.data.memory.resize(heard_at_once);
      for (const auto line : {control_line, data_line}) watch_.add(socket_of(p, line), key_of(p, line));
    }
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
      happened_.wait_for(hold, std::chrono::seconds(aborted_ ? 1 : 5), [&] {
        return first_without(peers_, [&](const peer_state& peer) {
                 const bool silent = aborted_ && peer.answered_to < questions_;  // it does not answer this either
                 return peer.down || peer.released || silent;
               }) < 0;
      });
      stopped_ = true;
      watch_.alarm();
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
    if (c.sending) {
      send_what_may_go(c);
    } else {
      if (n.bytes > small_tensor || (n.number + 1 == c.announced && n.number >= c.moved))
        say(c.peer, frame_kind::receive_posted, &n, 1);
      take_early(c);
    }
    if (!aborted_ && c.transfers.first && peers_[at(c.peer)].down) fail(lost_text(peers_, c.peer, {}));
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    lock hold(guard_);
    if (!bell_.wait(hold, until, sends, aborted_)) return wait_result::deadline;
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
    const bool in_time = happened_.wait_until(hold, until, [&] { return look() || aborted_; });
    // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
    if (aborted_ && missing >= 0)
      happened_.wait_until(hold,
                           std::min(until, std::chrono::steady_clock::now() + deadline_time::duration(std::chrono::seconds(1))),
                           [&] { return look() || peers_[at(missing)].gave_up; });
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
    happened_.wait_for(hold, std::chrono::seconds(1), [&] { return aborted_ || first_without(peers_, has_answered) < 0; });
    if (first_without(peers_, has_answered) >= 0) fail(ranks_without(peers_, has_answered) + " not answered for a second");
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }

  void on_wake(std::function<void()> ring) {
    const lock hold(guard_);
    bell_.also(std::move(ring));
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
  static constexpr std::uint64_t key_of_alarm = ~std::uint64_t{0};
  static constexpr std::size_t heard_at_once = 65536;
  static constexpr std::size_t moved_at_once = std::size_t{1} << 18;  ///< while others wait for the mutex

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int socket_of(int p, line_of line) const { return mesh_.lines[at(p)][line].number(); }
  [[nodiscard]] static std::uint64_t key_of(int p, line_of line) { return lines_per_pair * at(p) + line; }
  /// Adjusts what is watched of a connection.
  void watch(int p, line_of line) {
    const auto& peer = peers_[at(p)];
    const bool listens = !peer.down && !peer.mute, talks = line == control_line ? peer.waits_to_say : peer.waits_to_send;
    watch_.change(socket_of(p, line), key_of(p, line), listens, talks);
  }

  channel_end& find(const edge& e) { return channels_.find(e, mesh_.rank); }

  // All below, but for work(), is called with the mutex held.

  void end(gloo_transfer& t, bool of_send) {
    t.end_s = steady_now_s();
    t.ended.store(true, std::memory_order_release);
    bell_.ring(of_send, working_);
  }

  void fail(const std::string& reason) {
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    for (auto& c : channels_.all) c.transfers = {};
    const std::size_t length = std::min(reason.size(), longest_frame - sizeof(frame_header));
    for (int p = 0; p < mesh_.ranks; ++p) {
      auto& peer = peers_[at(p)];
      peer.drop_tensors();
      if (!peer.there || peer.down) continue;
      peer.waits_to_send = false;
      watch_.remove(socket_of(p, data_line));
      say(p, frame_kind::abort, reason.data(), length);
      answer_leaving(p);
    }
    bell_.ring_for_all();
    happened_.notify_all();
  }

  /// Nothing can be said to or heard from a rank any more.
  void lose(int p, const std::string& why) {
    auto& peer = peers_[at(p)];
    if (peer.down) return;
    peer.down = true;
    peer.waits_to_say = peer.waits_to_send = false;
    for (const auto line : {control_line, data_line}) watch_.remove(socket_of(p, line));
    bool is_missed = !peer.leaving || peer.outgoing.first;
    for (const auto& c : channels_.all) is_missed = is_missed || (c.peer == p && c.transfers.first);
    if (is_missed) fail(lost_text(peers_, p, why));
    happened_.notify_all();
  }
  /// The connection for tensors is broken: the peer's frames tell why, if they come soon.
  void break_off(int p, const std::string& why) {
    auto& peer = peers_[at(p)];
    if (peer.down || peer.broken_at) return;
    peer.broken_at = std::chrono::steady_clock::now();
    peer.broken_why = why;
    peer.waits_to_send = false;
    watch_.remove(socket_of(p, data_line));
    watch_.alarm();  // the thread is to count the time
  }
  void distrust(int p, const char* what, const char* fault) {
    peers_[at(p)].mute = true;
    fail(std::string(what) + " from rank " + std::to_string(p) + ' ' + fault + ": is it of the same program?");
    watch(p, control_line);
  }

  // Frames.

  template <class First, class Second = char>
  void say(int p, frame_kind kind, const First* first, std::size_t firsts, const Second* second = nullptr,
           std::size_t seconds = 0) {
    auto& peer = peers_[at(p)];
    if (peer.down) return;
    append_frame(peer.to_say, kind, peer.told = peer.unasked_got, first, firsts, second, seconds);
    if (!peer.waits_to_say) write_frames(p);
  }
  void write_frames(int p) {
    auto& peer = peers_[at(p)];
    while (peer.has_to_say()) {
      const auto n = ::send(socket_of(p, control_line), peer.to_say.data() + peer.said, peer.to_say.size() - peer.said,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) break;  // that the connection has ended is found by who reads
      peer.said += static_cast<std::size_t>(n);
    }
    const bool left = peer.has_to_say();
    if (std::exchange(peer.waits_to_say, left) != left) watch(p, control_line);
  }

  void answer_leaving(int p) {
    auto& peer = peers_[at(p)];
    if (!peer.leaving || peer.answered || (!aborted_ && peer.tensors_got < peer.tensors_due)) return;
    peer.answered = true;
    say<char>(p, frame_kind::released, nullptr, 0);
  }

  void acknowledge(int p, std::uint64_t unasked) {
    auto& peer = peers_[at(p)];
    if (unasked <= peer.acknowledged) return;
    const auto before = std::exchange(peer.acknowledged, unasked);
    if (peer.unasked_sent < before + most_unasked || aborted_) return;
    for (auto& c : channels_.all)
      if (c.peer == p && c.sending) send_what_may_go(c);
  }

  void take_frame(int p, const char* frame) {
    auto& peer = peers_[at(p)];
    const auto header = read_part<frame_header>(frame);
    const char* const body = frame + sizeof header;
    if (const char* const fault = fault_of(frame, peer.unasked_sent)) return distrust(p, "a frame", fault);
    acknowledge(p, header.acknowledged);
    switch (header.kind) {
      case frame_kind::receive_posted: {
        const auto wanted = read_part<tensor_note>(body);
        auto& c = find(wanted.where(mesh_.rank, p));
        if (aborted_ || wanted.number < c.moved) break;
        c.wanted.push_back(wanted);
        send_what_may_go(c);
        break;
      }
      case frame_kind::announced: {
        const auto waiting = read_part<tensor_note>(body);
        auto& c = find(waiting.where(p, mesh_.rank));
        c.announced = std::max(c.announced, waiting.number + 1);
        if (!aborted_) ask_for(c, waiting.number);
        break;
      }
      case frame_kind::numbers: {
        const auto part = read_part<gathered_numbers>(body);
        if (!peer.add_numbers(part, body + sizeof part, (header.bytes - sizeof part) / sizeof(double)))
          return distrust(p, "a frame", "brings more numbers than it said");
        happened_.notify_all();
        break;
      }
      case frame_kind::abort:
        peer.gave_up = true;
        fail(printable({body, header.bytes}));
        happened_.notify_all();
        break;
      case frame_kind::leaving:
        peer.leaving = true;
        peer.tensors_due = read_part<std::uint64_t>(body);
        answer_leaving(p);
        break;
      case frame_kind::released:
        peer.released = true;
        happened_.notify_all();
        break;
      case frame_kind::acknowledge:
        break;
      case frame_kind::ask: {
        const auto question = read_part<std::uint64_t>(body);
        say(p, frame_kind::answer, &question, 1);
        break;
      }
      case frame_kind::answer:
        peer.answered_to = std::max(peer.answered_to, read_part<std::uint64_t>(body));
        happened_.notify_all();
        break;
    }
  }

  /// A tensor waits at the other end that this one has posted a receive for, which has not been told.
  void ask_for(channel_end& c, std::uint64_t number) {
    const auto* const t = c.transfers.find(number);
    if (t && t->header.note.bytes <= small_tensor) say(c.peer, frame_kind::receive_posted, &t->header.note, 1);
  }

  void read_frames(int p) {
    auto& peer = peers_[at(p)];
    auto& in = peer.frames;
    std::string why;
    std::size_t got = 0, room = in.make_room();
    if (read_some(socket_of(p, control_line), in.memory.data() + in.last, room, got, why) == reading::ended) return lose(p, why);
    in.last += got;
    while (!peer.mute && in.size() >= sizeof(frame_header)) {
      const std::size_t size = sizeof(frame_header) + read_part<frame_header>(in.data()).bytes;
      if (size > longest_frame) return distrust(p, "a frame", "has a wrong length");
      if (in.size() < size) return;
      std::array<char, longest_frame> frame;
      std::memcpy(frame.data(), in.data(), size);
      in.take(size);
      take_frame(p, frame.data());
    }
  }

  // Tensors out.

  void send_what_may_go(channel_end& c) {
    auto& peer = peers_[at(c.peer)];
    while (c.transfers.first && !aborted_) {
      auto& t = *c.transfers.first;
      auto& note = t.header.note;
      while (c.wanted_first < c.wanted.size() && c.wanted[c.wanted_first].number < note.number) ++c.wanted_first;
      const bool is_wanted = c.wanted_first < c.wanted.size() && c.wanted[c.wanted_first].number == note.number;
      if (is_wanted) {
        if (const auto text = difference(c.where, note, c.wanted[c.wanted_first]); !text.empty()) return fail(text);
        ++c.wanted_first;
      } else if (note.bytes > small_tensor || peer.unasked_sent >= peer.acknowledged + most_unasked) {
        if (std::exchange(c.announced, note.number + 1) <= note.number) say(c.peer, frame_kind::announced, &note, 1);
        break;
      }
      if (c.wanted_first == c.wanted.size()) c.wanted.clear(), c.wanted_first = 0;
      note.unasked = !is_wanted;
      peer.unasked_sent += !is_wanted;
      t.header.acknowledged = peer.told = peer.unasked_got;
      c.transfers.pop();
      ++c.moved;
      peer.outgoing.push(t);
    }
    if (peer.outgoing.first && !peer.waits_to_send) write_tensors(c.peer);
  }

  /// Writes what the system takes; of long tensors, a part. The thread goes on with the rest.
  void write_tensors(int p) {
    auto& peer = peers_[at(p)];
    bool full = peer.broken_at.has_value();
    for (std::size_t left = working_ ? moved_at_once : heard_at_once; peer.outgoing.first && left > 0 && !full;) {
      std::array<iovec, 16> parts;
      const auto [count, asked] = parts_of(peer.outgoing, parts, left);
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const auto n = ::sendmsg(socket_of(p, data_line), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EAGAIN) return break_off(p, std::strerror(errno));
      const auto sent = static_cast<std::size_t>(std::max<ssize_t>(n, 0));
      full = sent < asked;
      left -= asked;
      take_written(peer.outgoing, sent, [&](gloo_transfer& t) {
        ++peer.tensors_sent;
        bytes_sent_ += t.header.note.bytes;
        end(t, true);
      });
    }
    const bool left = peer.outgoing.first != nullptr && !peer.broken_at;
    if (std::exchange(peer.waits_to_send, left) != left) watch(p, data_line);
  }

  // Tensors in.

  void took_unasked(int p) {
    auto& peer = peers_[at(p)];
    if (++peer.unasked_got >= peer.told + most_unasked / 2) say<char>(p, frame_kind::acknowledge, nullptr, 0);
  }

  /// Gives the receives of a channel what has come before them.
  void take_early(channel_end& c) {
    while (!aborted_ && c.transfers.first && c.early_first && c.early_first->whole) {
      auto& t = c.transfers.pop();
      auto& early = *c.early_first;
      c.early_first = early.next;
      if (const auto text = difference(c.where, early.note, t.header.note); !text.empty()) return fail(text);
      if (early.note.bytes > 0) std::memcpy(t.data, early.bytes, early.note.bytes);
      blocks_.give_back(early);
      took_unasked(c.peer);
      end(t, false);
    }
  }

  /// Finds out where a tensor that comes belongs. False: nowhere.
  [[nodiscard]] bool take_header(int p, const tensor_header& header) {
    auto& peer = peers_[at(p)];
    const auto& note = header.note;
    const auto refuse = [&](const char* fault) {
      distrust(p, "a tensor", fault);
      return false;
    };
    if (!is_known(note)) return refuse("is of an unknown kind");
    auto& c = find(note.where(p, mesh_.rank));
    if (const char* const fault = fault_of(header, c.moved, peer.unasked_sent)) return refuse(fault);
    ++c.moved;
    peer.have = 0;
    peer.into = nullptr;
    peer.into_early = nullptr;
    if (c.transfers.first && !c.early_first) {
      if (const auto text = difference(c.where, note, c.transfers.first->header.note); !text.empty()) {
        fail(text);
        return false;
      }
      peer.into = &c.transfers.pop();
    } else if (note.unasked == 0) {
      return refuse("has not been asked for");
    } else {
      peer.into_early = &blocks_.take(note);
      (c.early_first ? c.early_last->next : c.early_first) = peer.into_early;
      c.early_last = peer.into_early;
    }
    peer.from = &c;
    peer.coming = note;
    acknowledge(p, header.acknowledged);
    return !aborted_;
  }

  void finish_tensor(int p) {
    auto& peer = peers_[at(p)];
    auto& c = *std::exchange(peer.from, nullptr);
    ++peer.tensors_got;
    if (peer.into) {
      if (peer.coming.unasked != 0) took_unasked(p);
      end(*std::exchange(peer.into, nullptr), false);
    } else {
      peer.into_early->whole = true;
      take_early(c);
    }
    answer_leaving(p);
  }

  /// Gives what has been heard to the tensors that it is of.
  void share_out(int p) {
    auto& peer = peers_[at(p)];
    auto& in = peer.data;
    while (!aborted_ && !peer.mute) {
      if (peer.from) {
        const std::size_t part = std::min(peer.coming.bytes - peer.have, in.size());
        if (part > 0) std::memcpy(peer.place(), in.data(), part);
        in.take(part);
        peer.have += part;
        if (peer.have < peer.coming.bytes) return;
        finish_tensor(p);
      } else {
        if (in.size() < sizeof(tensor_header)) return;
        const auto header = read_part<tensor_header>(in.data());
        in.take(sizeof header);
        if (!take_header(p, header)) return;
      }
    }
  }

  void read_tensors(int p) {
    auto& peer = peers_[at(p)];
    auto& in = peer.data;
    for (std::size_t budget = moved_at_once; budget > 0 && !aborted_ && !peer.mute;) {
      const std::size_t missing = peer.from ? peer.coming.bytes - peer.have : 0;
      const bool straight = missing >= heard_at_once / 2;  // the rest of a long one goes where it belongs
      const std::size_t room = straight ? std::min(missing, budget) : in.make_room();
      char* const to = !straight ? in.memory.data() + in.last : peer.place();
      std::string why;
      std::size_t got = 0;
      const auto result = read_some(socket_of(p, data_line), to, room, got, why);
      if (result == reading::ended) return break_off(p, why);
      (straight ? peer.have : in.last) += got;
      budget -= std::min(budget, got);
      share_out(p);
      if (result == reading::some) return;
    }
  }

  // The thread.

  void work() {
    lock hold(guard_);
    while (!stopped_) {
      int limit_ms = -1;
      for (int p = 0; p < mesh_.ranks; ++p) {
        auto& peer = peers_[at(p)];
        if (!peer.broken_at || peer.down || aborted_ || peer.leaving) continue;
        const auto waited = std::chrono::steady_clock::now() - *peer.broken_at;
        if (waited >= std::chrono::seconds(1)) fail(lost_text(peers_, p, peer.broken_why));
        limit_ms = 50;
      }
      working_ = false;
      hold.unlock();
      bell_.ring_late();
      const auto happened = watch_.wait(limit_ms);
      hold.lock();
      working_ = true;
      for (const auto& e : happened) {
        if (e.data.u64 == key_of_alarm) {
          watch_.quiet();
          continue;
        }
        const int p = static_cast<int>(e.data.u64 / lines_per_pair);
        const bool of_frames = e.data.u64 % lines_per_pair == control_line;
        if ((e.events & EPOLLOUT) != 0 && !peers_[at(p)].down) of_frames ? write_frames(p) : write_tensors(p);
        if ((e.events & ~std::uint32_t{EPOLLOUT}) == 0 || peers_[at(p)].down) continue;
        if (!of_frames)
          read_tensors(p);
        else if (peers_[at(p)].mute)
          lose(p, "it is not heard any more");
        else
          read_frames(p);
      }
    }
  }

  gloo_mesh mesh_;
  socket_watch watch_;
  mutable std::mutex guard_;
  std::vector<peer_state> peers_;
  channel_ends channels_;
  early_blocks blocks_;
  bell bell_;
  std::condition_variable happened_;  ///< what gather, ask and the end wait for
  bool working_ = false;              ///< the thread has the mutex
  bool aborted_ = false, stopped_ = false;
  std::string reason_;
  std::uint64_t round_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t questions_ = 0;  ///< whether the others are there
  std::thread worker_;
};

}  // namespace hetsched::detail
