// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/gloo/channel_end.hpp>
#include <hetsched/gloo/frame.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/peer_state.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// The channels of one rank. Gloo can only be waited for, so every end of a channel has a thread that waits, and every peer
/// has one that reads its frames. One more thread sends frames and posts receives with Gloo, so that no call of the user
/// waits for a socket.
///
/// Bytes go from tensor to tensor. A receive is posted with Gloo and told to the sender (receive_posted), who compares it
/// with what it is about to send: Gloo's own thread would end the process over a message that is too long. Channels are known
/// by their edges, so the ends may open them in any order.
///
/// One mutex guards everything but `ended`. Gloo's threads never take it.
class channel_engine {
 public:
  using lock = std::unique_lock<std::mutex>;

  explicit channel_engine(gloo_mesh mesh) : mesh_(std::move(mesh)), peers_(static_cast<std::size_t>(mesh_.ranks)) {
    if (mesh_.ranks == 1) return;
    for (auto* const context : {mesh_.control.get(), mesh_.data.get()}) context->setTimeout(for_ever);
    const no_signals in_threads;
    for (int p = 0; p < mesh_.ranks; ++p) {
      if (p == mesh_.rank) continue;
      auto& peer = peers_[at(p)];
      peer.memory.resize(frames_posted * longest_frame);
      peer.incoming = mesh_.control->createUnboundBuffer(peer.memory.data(), peer.memory.size());
      peer.reader = std::thread([this, p] { read_frames(p); });
    }
    messenger_ = std::thread([this] { send_letters(); });
  }

  channel_engine(const channel_engine&) = delete;
  channel_engine& operator=(const channel_engine&) = delete;

  /// Waits until all peers have what was sent to them, at most 5 s (1 s once aborted), and ends all threads.
  ~channel_engine() {
    if (mesh_.ranks == 1) return;
    {
      lock hold(guard_);
      for (auto& peer : peers_)
        if (peer.reader.joinable() && !peer.down) {
          const int p = static_cast<int>(&peer - peers_.data());
          write(p, make_frame(frame_kind::leaving, &peer.tensors_sent, 1));
        }
      happened_.wait_for(hold, std::chrono::seconds(aborted_ ? 1 : 5), [&] {
        for (const auto& peer : peers_) {
          const bool silent = aborted_ && peer.answered_to < questions_;  // it does not answer this either
          if (peer.reader.joinable() && !peer.down && !peer.released && !silent) return false;
        }
        return true;
      });
      stopped_ = true;
      mail_.notify_one();
      for (auto& c : channels_) wake(*c);
      for (auto& peer : peers_)
        if (peer.incoming) peer.incoming->abortWaitRecv();
    }
    messenger_.join();
    for (auto& c : channels_)
      if (c->worker.joinable()) c->worker.join();
    for (auto& peer : peers_)
      if (peer.reader.joinable()) peer.reader.join();
  }

  [[nodiscard]] int rank() const { return mesh_.rank; }
  [[nodiscard]] int ranks() const { return mesh_.ranks; }
  [[nodiscard]] const gloo_mesh& mesh() const { return mesh_; }

  [[nodiscard]] channel_end& open(const edge& e) {
    HETSCHED_EXPECTS(e.from != e.to && (e.from == mesh_.rank || e.to == mesh_.rank));
    HETSCHED_EXPECTS(e.from >= 0 && e.from < mesh_.ranks && e.to >= 0 && e.to < mesh_.ranks);
    const lock hold(guard_);
    auto& c = find(e);
    if (!c.worker.joinable()) {
      const no_signals in_thread;
      c.worker = std::thread([this, &c] { c.sending ? send_tensors(c) : receive_tensors(c); });
    }
    return c;
  }

  void post(channel_end& c, gloo_transfer& t) {
    t.ended.store(false, std::memory_order_relaxed);
    const lock hold(guard_);
    if (aborted_) return;
    if (c.sending) {
      c.transfers.push(t);
      c.changed.notify_one();
    } else {
      ++receives_in_mail_;
      letters_.push_back({.peer = c.peer, .frame = {}, .posted = &t, .end = &c});
      mail_.notify_one();
    }
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    lock hold(guard_);
    const auto rung = [&] { return received_ || (sends && sent_) || aborted_; };
    while (!rung()) {
      waits_ = sends ? for_all : for_receives;
      const auto status = bell_.wait_until(hold, until);
      waits_ = for_nothing;
      if (status == std::cv_status::timeout && !rung()) return wait_result::deadline;
    }
    received_ = false;
    if (sends) sent_ = false;
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
        write(p, make_frame(frame_kind::numbers, &part, 1, mine.data() + first, count));
      }
    }
    int missing = -1;
    const auto has_brought = [round](peer_state& peer) { return peer.has_brought(round); };
    const auto look = [&] {
      missing = first_without(has_brought);
      return missing < 0 || peers_[at(missing)].down;
    };
    const bool in_time = happened_.wait_until(hold, until, [&] { return look() || aborted_; });
    // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
    if (aborted_ && missing >= 0)
      happened_.wait_until(hold,
                           std::min(until, std::chrono::steady_clock::now() + deadline_time::duration(std::chrono::seconds(1))),
                           [&] { return look() || peers_[at(missing)].gave_up; });
    if (missing >= 0) {
      if (in_time && !aborted_) fail(lost_text(missing, {}));
      if (!aborted_) reason_ = ranks_without(has_brought) + " not answered in time";
      return aborted_ ? wait_result::aborted : wait_result::deadline;
    }
    all.resize(at(mesh_.ranks));
    for (int p = 0; p < mesh_.ranks; ++p) {
      if (p == mesh_.rank)
        all[at(p)].assign(mine.begin(), mine.end());
      else
        all[at(p)] = peers_[at(p)].take_numbers();
    }
    return wait_result::progress;
  }

  /// See asking_plane.
  [[nodiscard]] wait_result ask() {
    lock hold(guard_);
    const std::uint64_t question = ++questions_;
    for (int p = 0; p < mesh_.ranks && !aborted_; ++p)
      if (p != mesh_.rank && !peers_[at(p)].down) write(p, make_frame(frame_kind::ask, &question, 1));
    const auto has_answered = [question](const peer_state& peer) { return peer.down || peer.answered_to >= question; };
    happened_.wait_for(hold, std::chrono::seconds(1), [&] { return aborted_ || first_without(has_answered) < 0; });
    if (first_without(has_answered) >= 0) fail(ranks_without(has_answered) + " not answered for a second");
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }

  void on_wake(std::function<void()> ring) {
    const lock hold(guard_);
    also_ = std::move(ring);
  }

  /// Returns when no thread holds a tensor or a transfer any more, and all peers have been written to.
  void abort(const std::string& reason) {
    lock hold(guard_);
    fail(reason.empty() ? "aborted" : reason);
    happened_.wait(hold, [&] {
      if (messenger_.joinable() && (receives_in_mail_ > 0 || !letters_.empty() || messenger_busy_)) return false;
      for (const auto& c : channels_)
        if (c->transfers.first || c->under_way) return false;
      return true;
    });
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
  static constexpr std::size_t frames_posted = 32;
  static constexpr std::chrono::milliseconds for_ever = std::chrono::hours(24 * 365);

  /// For the messenger: a frame for a peer, a receive to be posted, or (neither) to cut the connections for tensors.
  struct letter {
    int peer = -1;
    std::vector<char> frame;
    gloo_transfer* posted = nullptr;
    channel_end* end = nullptr;
  };
  enum purpose : std::uint8_t { for_nothing, for_receives, for_all };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  channel_end& find(const edge& e) {
    for (auto& c : channels_)
      if (c->where == e) return *c;
    auto& c = *channels_.emplace_back(std::make_unique<channel_end>());
    c.where = e;
    c.sending = e.from == mesh_.rank;
    c.peer = c.sending ? e.to : e.from;
    c.slot = std::uint64_t{static_cast<std::uint8_t>(e.what)} << 56 |
             std::uint64_t{static_cast<std::uint8_t>(e.direction)} << 48 |
             std::uint64_t{static_cast<std::uint16_t>(e.part)} << 32 | std::uint64_t{static_cast<std::uint32_t>(e.stage)};
    return c;
  }

  void write(int p, std::vector<char> frame) {
    letters_.push_back({.peer = p, .frame = std::move(frame), .posted = nullptr, .end = nullptr});
    mail_.notify_one();
  }

  static void wake(channel_end& c) {
    c.changed.notify_all();
    if (!c.waits_for) return;
    c.sending ? c.waits_for->abortWaitSend() : c.waits_for->abortWaitRecv();
  }

  void ring(bool of_send) {
    (of_send ? sent_ : received_) = true;
    if (waits_ == for_all || (waits_ == for_receives && !of_send)) bell_.notify_one();
    if (also_) also_();
  }

  // All below, but for the bodies of threads, is called with the mutex held.

  void fail(const std::string& reason) {
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    if (mesh_.ranks > 1) {
      std::erase_if(letters_, [&](const letter& l) { return l.posted != nullptr && (--receives_in_mail_, true); });
      const std::size_t length = std::min(reason.size(), longest_frame - sizeof(frame_header));
      for (int p = 0; p < mesh_.ranks; ++p)
        if (p != mesh_.rank && !peers_[at(p)].down) {
          write(p, make_frame(frame_kind::abort, reason.data(), length));
          answer_leaving(p);
        }
      letters_.push_back({});
      mail_.notify_one();
    }
    for (auto& c : channels_) wake(*c);
    bell_.notify_all();
    if (also_) also_();
    happened_.notify_all();
  }

  /// The first other rank that has not done something; -1: all have.
  template <class Done>
  [[nodiscard]] int first_without(const Done& done) {
    for (int p = 0; p < mesh_.ranks; ++p)
      if (p != mesh_.rank && !done(peers_[at(p)])) return p;
    return -1;
  }
  /// "rank 1 has", or "ranks 1, 2 have".
  template <class Done>
  [[nodiscard]] std::string ranks_without(const Done& done) {
    std::string names;
    int count = 0;
    for (int p = 0; p < mesh_.ranks; ++p)
      if (p != mesh_.rank && !done(peers_[at(p)])) names += (count++ > 0 ? ", " : "") + std::to_string(p);
    return count == 1 ? "rank " + names + " has" : "ranks " + names + " have";
  }

  [[nodiscard]] std::string lost_text(int p, const std::string& why) const {
    return "rank " + std::to_string(p) + (peers_[at(p)].leaving ? " has left" : " was lost") + (why.empty() ? "" : ": " + why);
  }

  /// A connection for tensors is broken: the peer's frames tell why, if they come soon.
  void broken(lock& hold, int p, const std::string& why) {
    happened_.wait_for(hold, std::chrono::seconds(1), [&] { return aborted_ || peers_[at(p)].down; });
    fail(lost_text(p, why));
  }

  void answer_leaving(int p) {
    auto& peer = peers_[at(p)];
    if (!peer.leaving || peer.answered || (!aborted_ && peer.tensors_got < peer.tensors_due)) return;
    peer.answered = true;
    write(p, make_frame<char>(frame_kind::released, nullptr, 0));
  }

  void distrust(int p, const char* fault) {
    fail("a frame from rank " + std::to_string(p) + ' ' + fault + ": is it of the same program?");
  }

  void take_frame(int p, const char* frame) {
    auto& peer = peers_[at(p)];
    const auto header = read_part<frame_header>(frame);
    const char* const body = frame + sizeof header;
    ++peer.frames_got;
    if (const char* const fault = fault_of(frame, peer.acknowledged + peer.unacknowledged.size())) return distrust(p, fault);
    peer.acknowledge(header.acknowledged);
    switch (header.kind) {
      case frame_kind::receive_posted: {
        const auto wanted = read_part<posted_receive>(body);
        auto& c = find(
            {mesh_.rank, p, static_cast<payload>(wanted.edge_what), wanted.edge_direction, wanted.edge_stage, wanted.edge_part});
        c.wanted.push_back(wanted);
        c.changed.notify_one();
        break;
      }
      case frame_kind::numbers: {
        const auto part = read_part<gathered_numbers>(body);
        if (!peer.add_numbers(part, body + sizeof part, (header.bytes - sizeof part) / sizeof(double)))
          return distrust(p, "brings more numbers than it said");
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
        write(p, make_frame(frame_kind::answer, &question, 1));
        break;
      }
      case frame_kind::answer:
        peer.answered_to = std::max(peer.answered_to, read_part<std::uint64_t>(body));
        happened_.notify_all();
        break;
    }
    if (peer.frames_got >= peer.frames_told + frames_posted / 2) {
      peer.frames_told = peer.frames_got;
      write(p, make_frame<char>(frame_kind::acknowledge, nullptr, 0));
    }
  }

  void read_frames(int p) {
    auto& peer = peers_[at(p)];
    std::string why;
    try {
      for (std::size_t i = 0; i < frames_posted; ++i) peer.incoming->recv(p, 0, i * longest_frame, longest_frame);
      for (std::size_t i = 0; peer.incoming->waitRecv(nullptr, for_ever); i = (i + 1) % frames_posted) {
        {
          const lock hold(guard_);
          take_frame(p, peer.memory.data() + i * longest_frame);
        }
        peer.incoming->recv(p, 0, i * longest_frame, longest_frame);
      }
      return;  // stopped
    } catch (const std::exception& e) {
      why = gloo_text(e);
    }
    const lock hold(guard_);
    peer.down = true;
    if (!peer.leaving) fail(lost_text(p, why));
    for (auto& c : channels_)
      if (c->peer == p) c->changed.notify_all();
    happened_.notify_all();
  }

  void send_letters() {
    lock hold(guard_);
    while (true) {
      mail_.wait(hold, [&] { return stopped_ || !letters_.empty(); });
      if (letters_.empty()) return;
      letter next = std::move(letters_.front());
      letters_.pop_front();
      messenger_busy_ = true;
      if (next.posted)
        post_receive(hold, next);
      else if (next.peer >= 0)
        send_frame(hold, next.peer, std::move(next.frame));
      else
        cut(hold);
      messenger_busy_ = false;
      if (aborted_) happened_.notify_all();
    }
  }

  void send_frame(lock& hold, int p, std::vector<char> bytes) {
    auto& peer = peers_[at(p)];
    if (peer.down) return;
    auto header = read_part<frame_header>(bytes.data());
    header.acknowledged = peer.frames_told = peer.frames_got;
    std::memcpy(bytes.data(), &header, sizeof header);
    auto& frame = peer.unacknowledged.emplace_back();
    frame.bytes = std::move(bytes);
    frame.buffer = mesh_.control->createUnboundBuffer(frame.bytes.data(), frame.bytes.size());
    auto& buffer = *frame.buffer;  // stays until it is acknowledged, which is after it has been sent
    hold.unlock();
    try {
      buffer.send(p, 0);
    } catch (const std::exception&) {
      // The thread that reads its frames hears of it, too.
    }
    hold.lock();
  }

  void post_receive(lock& hold, const letter& l) {
    auto& t = *l.posted;
    auto& c = *l.end;
    hold.unlock();
    try {
      t.buffer = mesh_.data->createUnboundBuffer(t.data, t.bytes);
      t.buffer->recv(c.peer, c.slot, 0, t.bytes);
    } catch (const std::exception&) {
      t.buffer = nullptr;  // the channel's thread sees to it
    }
    const auto& s = t.stamp;
    const posted_receive told{.step = s.step,
                              .bytes = t.bytes,
                              .elements = t.elements,
                              .shape = t.shape,
                              .microbatch = s.microbatch,
                              .stamp_direction = s.direction,
                              .stamp_stage = s.stage,
                              .edge_direction = c.where.direction,
                              .edge_stage = c.where.stage,
                              .edge_part = c.where.part,
                              .stamp_what = static_cast<std::uint8_t>(s.what),
                              .edge_what = static_cast<std::uint8_t>(c.where.what)};
    hold.lock();
    --receives_in_mail_;
    if (aborted_) {
      t.buffer = nullptr;
      return;
    }
    const bool posted = t.buffer != nullptr;
    c.transfers.push(t);
    c.changed.notify_one();
    if (posted) send_frame(hold, c.peer, make_frame(frame_kind::receive_posted, &told, 1));
  }

  /// Gloo's thread would look again and again for the tensors of messages that are cut short.
  void cut(lock& hold) {
    hold.unlock();
    for (int p = 0; p < mesh_.ranks; ++p) {
      if (p == mesh_.rank) continue;
      try {
        mesh_.data->getPair(p)->close();
      } catch (const std::exception&) {
        // It is cut already.
      }
    }
    hold.lock();
  }

  /// Whether Gloo has done what is under way. If not, why: what went wrong, or "" if that is for others to say.
  [[nodiscard]] bool wait_for(lock& hold, channel_end& c, std::string& why) {
    auto* const buffer = c.under_way->buffer.get();
    if (!buffer) return false;
    c.waits_for = buffer;
    hold.unlock();
    bool done = false;
    try {
      if (c.sending) buffer->send(c.peer, c.slot, 0, c.under_way->bytes);
      done = c.sending ? buffer->waitSend(nullptr, for_ever) : buffer->waitRecv(nullptr, for_ever);
    } catch (const std::exception& e) {
      why = gloo_text(e);
    }
    hold.lock();
    c.waits_for = nullptr;
    return done;
  }

  void end(channel_end& c) {
    auto& t = *std::exchange(c.under_way, nullptr);
    t.buffer = nullptr;
    t.end_s = steady_now_s();
    t.ended.store(true, std::memory_order_release);
    ring(c.sending);
  }

  void drop_all(channel_end& c) {
    if (c.under_way) std::exchange(c.under_way, nullptr)->buffer = nullptr;
    while (c.transfers.first) c.transfers.pop().buffer = nullptr;
    happened_.notify_all();
  }

  void receive_tensors(channel_end& c) {
    lock hold(guard_);
    while (true) {
      c.changed.wait(hold, [&] { return stopped_ || aborted_ || c.transfers.first; });
      if (stopped_ || aborted_) return drop_all(c);
      c.under_way = &c.transfers.pop();
      if (std::string why; !wait_for(hold, c, why)) {
        if (!stopped_ && !aborted_) broken(hold, c.peer, why);
        return drop_all(c);
      }
      ++peers_[at(c.peer)].tensors_got;
      end(c);
      answer_leaving(c.peer);
    }
  }

  void send_tensors(channel_end& c) {
    lock hold(guard_);
    auto& peer = peers_[at(c.peer)];
    while (true) {
      c.changed.wait(hold, [&] { return stopped_ || aborted_ || (c.transfers.first && (!c.wanted.empty() || peer.down)); });
      if (stopped_ || aborted_) return drop_all(c);
      auto& t = c.transfers.pop();
      c.under_way = &t;
      if (c.wanted.empty()) {
        fail(lost_text(c.peer, {}));
        return drop_all(c);
      }
      const auto wanted = c.wanted.front();
      c.wanted.pop_front();
      if (const auto text = difference(c.where, t, wanted); !text.empty()) {
        fail(text);
        return drop_all(c);
      }
      t.buffer = mesh_.data->createUnboundBuffer(t.data, t.bytes);
      if (std::string why; !wait_for(hold, c, why)) {
        if (!stopped_ && !aborted_) broken(hold, c.peer, why);
        return drop_all(c);
      }
      ++peer.tensors_sent;
      bytes_sent_ += t.bytes;
      end(c);
    }
  }

  gloo_mesh mesh_;
  mutable std::mutex guard_;
  std::vector<peer_state> peers_;
  std::vector<std::unique_ptr<channel_end>> channels_;
  std::deque<letter> letters_;
  std::size_t receives_in_mail_ = 0;  ///< with the one that the messenger has in hand
  bool messenger_busy_ = false;
  std::condition_variable mail_, bell_, happened_;
  std::function<void()> also_;            ///< called with the mutex held
  bool received_ = false, sent_ = false;  ///< since the last wait for them
  purpose waits_ = for_nothing;
  bool aborted_ = false, stopped_ = false;
  std::string reason_;
  std::uint64_t round_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t questions_ = 0;  ///< whether the others are there
  std::thread messenger_;
};

}  // namespace hetsched::detail
