// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/process_group_test.cpp.

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
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/no_signals.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/communicator/detail/standstill.hpp>
#include <hetsched/runtime/device/steady_time.hpp>

namespace hetsched {

struct torch_group_options {
  /// Of its messages in the group. Communicators that live at the same time have different ones, and none is the program's own;
  /// once aborted, a tag is not used again in the group. The same on all ranks.
  int tag = 0;
  double connect_deadline_s = 30;  ///< until all have come
  /// What is to be told of this process, such as that it stood still; may be empty.
  std::function<void(const std::string&)> say{};
};

namespace detail {

/// A send or receive of bytes, on its way.
struct group_transfer {
  std::atomic<bool> ended{false};
  double end_s = 0;
  std::byte* data = nullptr;
  sent_tensor what;
};

/// One end of a channel.
struct group_channel {
  edge where;
  int peer = 0;
  bool sending = false;
  std::deque<group_transfer*> waiting;  ///< sends that nobody has asked for yet, or receives, of which the first comes next
  std::deque<sent_tensor> wanted;       ///< receives that the peer has told of, for which there are no sends yet
};

/// The channels of one rank over a group of torch. Of each other rank there is one stream of frames, in order: a thread sends,
/// and another one receives. A frame is a head and, if it says so, a message of bytes behind it. A receive is told to its sender,
/// who answers by the tensor, in frames of some MiB, so that both ends are compared before bytes move, and what has to be said
/// goes between them. Nothing here is a collective of the group's, and no wait of its is bounded: Gloo gives up all connections
/// of a group when one wait takes too long. Deadlines are those of whoever waits for the threads.
class group_engine {
 public:
  using lock = std::unique_lock<std::mutex>;

  group_engine(c10::intrusive_ptr<c10d::Backend> group, torch_group_options options)
      : group_(std::move(group)), options_(std::move(options)) {
    if (!group_) throw input_error("the process group is null");
    if (options_.tag < 0) throw input_error("tag: found " + std::to_string(options_.tag) + ", expected 0 or more");
    rank_ = group_->getRank();
    ranks_ = group_->getSize();
    const auto kind = group_->getBackendName();
    if (kind == "nccl")
      throw input_error(
          "a group of NCCL holds no messages of the host: give torch's group for the cpu, and NCCL's to a "
          "torch_ordered_communicator");
    polls_ = kind != "gloo";
    for (int p = 0; p < ranks_; ++p) peers_.emplace_back();
    const no_signals in_threads;
    for (int p = 0; p < ranks_; ++p) {
      if (p == rank_) continue;
      at(peers_, p).in = std::thread([this, p] { listen(p); });
      at(peers_, p).out = std::thread([this, p] { speak(p); });
    }
  }
  group_engine(const group_engine&) = delete;
  group_engine& operator=(const group_engine&) = delete;
  /// Waits until all peers have what was sent to them, at most 5 s, and have been told that this one leaves, as long again (1 s
  /// once aborted). Aborts first if an exception ends this rank, or a gather has come to its deadline.
  ~group_engine() {
    if (ranks_ == 1) return;
    {
      lock hold(guard_);
      if (std::uncaught_exceptions() > exceptions_ && reason_.empty())
        reason_ = "rank " + std::to_string(rank_) + " was ended by an exception";
      if (!aborted_ && !reason_.empty()) fail(std::string(reason_));
      if (!aborted_)
        (void)await(hold, deadline_in(5), [&] {
          const bool waits = std::any_of(channels_.begin(), channels_.end(), [&](const group_channel& c) {
            return c.sending && !c.waiting.empty() && !at(peers_, c.peer).left;
          });
          return aborted_ || (!waits && is_said());
        });
      if (aborted_) let_go(hold);
      leaves_ = true;
      for (int p = 0; p < ranks_ && !aborted_; ++p) {
        if (p == rank_ || at(peers_, p).left) continue;
        say(p, {.kind = frame_kind::leaving});
        at(peers_, p).told_leaving = true;
      }
      (void)await(hold, deadline_in(aborted_ ? 1 : 5), [&] {
        return is_said() && std::all_of(peers_.begin(), peers_.end(), [&](const peer_state& p) {
                 return &p == &at(peers_, rank_) || p.gave_up || p.released || (p.left && (aborted_ || !p.told_leaving));
               });
      });
      stop();
    }
    for (auto& p : peers_) {
      if (p.in.joinable()) p.in.join();
      if (p.out.joinable()) p.out.join();
    }
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  /// Throws: error if not all come in time.
  void meet() {
    std::vector<std::vector<double>> all;
    if (gather({}, all, deadline_in(options_.connect_deadline_s)) != wait_result::progress)
      throw error("rank " + std::to_string(rank_) + " cannot meet the others: " + failure());
  }

  [[nodiscard]] group_channel& open(const edge& e) {
    HETSCHED_EXPECTS(e.from != e.to && (e.from == rank_ || e.to == rank_));
    HETSCHED_EXPECTS(e.from >= 0 && e.from < ranks_ && e.to >= 0 && e.to < ranks_);
    const lock hold(guard_);
    return find(e);
  }

  /// Of `t`, data and what are set.
  void post(group_channel& c, group_transfer& t) {
    t.ended.store(false, std::memory_order_relaxed);
    const lock hold(guard_);
    if (aborted_) return;
    if (at(peers_, c.peer).left) return fail(text_of_lost(c.peer));
    c.waiting.push_back(&t);
    if (c.sending)
      match(c);
    else
      say(c.peer, {.kind = frame_kind::posted, .where = c.where, .what = t.what});
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    lock hold(guard_);
    const bool in_time = await(hold, until, [&] { return aborted_ || received_ || (sends && sent_); });
    if (aborted_) return wait_result::aborted;
    if (!in_time) return wait_result::deadline;
    received_ = false;
    if (sends) sent_ = false;
    return wait_result::progress;
  }

  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    lock hold(guard_);
    if (aborted_) return wait_result::aborted;
    const std::uint64_t round = ++round_;
    for (int p = 0; p < ranks_; ++p)
      if (p != rank_) say(p, {.kind = frame_kind::numbers, .number = round}, mine.data(), mine.size_bytes());
    const auto has_brought = [round](const peer_state& p) { return !p.gathered.empty() && p.gathered.front().first == round; };
    int missing = -1;
    const auto look = [&] {
      for (auto& p : peers_)
        while (!p.gathered.empty() && p.gathered.front().first < round) p.gathered.pop_front();  // of a gather that was given up
      missing = first_without(has_brought);
      return missing < 0 || at(peers_, missing).left;
    };
    const bool in_time = await(hold, until, [&] { return look() || aborted_; });
    // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
    if (aborted_ && missing >= 0)
      (void)await(hold, std::min(until, deadline_in(1)), [&] { return look() || at(peers_, missing).gave_up; });
    if (missing >= 0) {
      if (in_time && !aborted_) fail(text_of_lost(missing));
      if (!aborted_) reason_ = ranks_without(has_brought) + " not answered in time";
      return aborted_ ? wait_result::aborted : wait_result::deadline;
    }
    all.resize(as_size(ranks_));
    for (int p = 0; p < ranks_; ++p) {
      if (p == rank_) {
        at(all, p).assign(mine.begin(), mine.end());
        continue;
      }
      at(all, p) = std::move(at(peers_, p).gathered.front().second);
      at(peers_, p).gathered.pop_front();
    }
    if (!aborted_) reason_.clear();  // of an earlier round that was late
    return wait_result::progress;
  }

  /// See asking_plane.
  [[nodiscard]] wait_result ask() {
    lock hold(guard_);
    const std::uint64_t question = ++questions_;
    for (int p = 0; p < ranks_ && !aborted_; ++p)
      if (p != rank_) say(p, {.kind = frame_kind::ask, .number = question});
    const auto has_answered = [question](const peer_state& p) { return p.left || p.answered_to >= question; };
    (void)await(hold, deadline_in(1), [&] { return aborted_ || first_without(has_answered) < 0; });
    if (first_without(has_answered) >= 0) fail(ranks_without(has_answered) + " not answered for a second");
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }

  void on_wake(std::function<void()> ring) {
    const lock hold(guard_);
    also_ = std::move(ring);
  }
  /// When it returns, no tensor or transfer is touched any more.
  void abort(const std::string& reason) {
    lock hold(guard_);
    fail(reason.empty() ? "aborted" : reason);
    let_go(hold);
  }
  [[nodiscard]] std::string failure() const {
    const lock hold(guard_);
    return reason_;
  }
  [[nodiscard]] std::uint64_t bytes_sent() const {
    const lock hold(guard_);
    return bytes_sent_;
  }

 private:
  enum class frame_kind : std::uint32_t { posted, tensor, numbers, abort, leaving, released, ask, answer };
  struct frame_head {
    frame_kind kind = frame_kind::posted;
    std::uint64_t number = 0;  ///< of a round or a question
    edge where{};
    sent_tensor what{};       ///< a receive that has been posted
    std::uint64_t first = 0;  ///< byte of the tensor, of those behind the head
    std::uint64_t bytes = 0;  ///< behind the head
  };
  static_assert(std::is_trivially_copyable_v<frame_head>);
  struct frame {
    frame_head head;
    std::vector<std::byte> body;
    group_transfer* transfer = nullptr;  ///< of which the bytes are
  };
  struct peer_state {
    std::list<frame> outgoing;
    bool begun = false;  ///< the first of them is under way
    std::deque<std::pair<std::uint64_t, std::vector<double>>> gathered;
    std::uint64_t answered_to = 0;
    bool gave_up = false;                ///< it has aborted: nothing more comes from it
    bool left = false;                   ///< it has said so, or was lost, and reads nothing more
    bool told_leaving = false;           ///< that this rank leaves
    bool released = false;               ///< its answer to that: nothing more comes from it
    bool reads = false, writes = false;  ///< a thread is at a tensor
    c10::intrusive_ptr<c10d::Work> receiving, sending;
    std::condition_variable more;
    std::thread in, out;
  };
  static constexpr std::size_t longest = std::size_t{4} << 20;  ///< message of a tensor

  /// Sends or receives one message, for as long as it takes. Returns false if it was stopped. Throws: what torch does.
  bool pass(int peer, bool sends, void* data, std::size_t bytes) {
    auto& p = at(peers_, peer);
    auto& under_way = sends ? p.sending : p.receiving;
    const auto view = at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte);
    // Where a message cannot be taken back, it has memory of its own.
    std::vector<at::Tensor> message{polls_ ? at::empty({static_cast<std::int64_t>(bytes)}, at::kByte) : view};
    if (polls_ && sends) message[0].copy_(view);
    c10::intrusive_ptr<c10d::Work> work;
    {
      const lock one_at_a_time(calls_);
      work = sends ? group_->send(message, peer, options_.tag) : group_->recv(message, peer, options_.tag);
    }
    {
      const lock hold(guard_);
      if (stopped_) work->abort();
      under_way = work;
    }
    bool whole = false;
    std::exception_ptr failed;
    try {
      if (!polls_) {
        whole = work->wait(std::chrono::hours(24 * 365));
      } else {
        for (int fruitless = 0; !(whole = work->isCompleted()) && !stopped_; ++fruitless)
          fruitless < 200 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (whole) work->wait();
      }
    } catch (...) {
      failed = std::current_exception();
    }
    {
      const lock hold(guard_);
      under_way.reset();
    }
    work.reset();  // from here on, nobody writes there
    if (failed) std::rethrow_exception(failed);
    if (whole && polls_ && !sends) view.copy_(message[0]);
    return whole;
  }

  void listen(int peer) {
    auto& from = at(peers_, peer);
    try {
      for (std::vector<std::byte> body;;) {
        frame_head head;
        if (!pass(peer, false, &head, sizeof head)) return;
        group_transfer* t = nullptr;
        if (head.kind == frame_kind::tensor) {
          const lock hold(guard_);
          auto& c = find(head.where);
          if (!aborted_ && !c.waiting.empty()) t = c.waiting.front();
          from.reads = t != nullptr;
        }
        if (!t) body.resize(head.bytes);
        if (head.bytes > 0 && !pass(peer, false, t ? t->data + head.first : body.data(), head.bytes)) {
          const lock hold(guard_);
          from.reads = false;
          wake_.notify_all();
          return;
        }
        const lock hold(guard_);
        from.reads = false;
        if (t && !aborted_ && head.first + head.bytes == t->what.bytes) {
          find(head.where).waiting.pop_front();
          end(*t, false);
        }
        hear(peer, head, body);
        wake_.notify_all();
        if (stopped_ || from.gave_up || from.released || (from.left && !from.told_leaving)) return;
      }
    } catch (const std::exception& e) {
      lose(peer, false, e.what());
    }
  }

  void speak(int peer) {
    auto& to = at(peers_, peer);
    try {
      for (;;) {
        frame* next = nullptr;
        {
          lock hold(guard_);
          while (!stopped_ && to.outgoing.empty()) {
            stood_still_.look();
            to.more.wait_for(hold, standstill::tick);
          }
          if (stopped_) return;
          next = &to.outgoing.front();
          to.begun = true;
          to.writes = next->transfer != nullptr;
        }
        auto* const body = next->transfer ? next->transfer->data + next->head.first : next->body.data();
        const bool whole = pass(peer, true, &next->head, sizeof next->head) &&
                           (next->head.bytes == 0 || pass(peer, true, body, next->head.bytes));
        const lock hold(guard_);
        to.writes = false;
        auto* const t = next->transfer;
        if (whole && t) bytes_sent_ += next->head.bytes;
        if (whole && t && !aborted_ && next->head.first + next->head.bytes == t->what.bytes) end(*t, true);
        to.outgoing.pop_front();
        to.begun = false;
        wake_.notify_all();
        if (!whole) return;
      }
    } catch (const std::exception& e) {
      lose(peer, true, e.what());
    }
  }

  // All below: with guard_ held.

  [[nodiscard]] group_channel& find(const edge& e) {
    if (const auto known = by_edge_.find(e); known != by_edge_.end()) return *known->second;
    auto& c = channels_.emplace_back();
    c.where = e;
    c.sending = e.from == rank_;
    c.peer = c.sending ? e.to : e.from;
    by_edge_.emplace(e, &c);
    return c;
  }

  void say(int peer, frame_head head, const void* body = nullptr, std::size_t bytes = 0, group_transfer* transfer = nullptr) {
    auto& to = at(peers_, peer);
    if (to.left || to.released || stopped_) return;
    head.bytes = bytes;
    auto& f = to.outgoing.emplace_back();
    f.head = head;
    f.transfer = transfer;
    if (!transfer && body) f.body.assign(static_cast<const std::byte*>(body), static_cast<const std::byte*>(body) + bytes);
    to.more.notify_one();
  }

  void match(group_channel& c) {
    while (!aborted_ && !c.waiting.empty() && !c.wanted.empty()) {
      auto& t = *c.waiting.front();
      if (const auto text = difference(c.where, t.what, c.wanted.front()); !text.empty()) return fail(text);
      c.waiting.pop_front();
      c.wanted.pop_front();
      std::uint64_t first = 0;
      do {
        const auto bytes = std::min<std::uint64_t>(longest, t.what.bytes - first);
        say(c.peer, {.kind = frame_kind::tensor, .where = c.where, .first = first}, nullptr, bytes, &t);
        first += bytes;
      } while (first < t.what.bytes);
    }
  }

  void hear(int peer, const frame_head& head, const std::vector<std::byte>& body) {
    auto& from = at(peers_, peer);
    switch (head.kind) {
      case frame_kind::tensor:
        return;
      case frame_kind::posted: {
        auto& c = find(head.where);
        c.wanted.push_back(head.what);
        return match(c);
      }
      case frame_kind::numbers: {
        auto& numbers = from.gathered.emplace_back(head.number, std::vector<double>(head.bytes / sizeof(double))).second;
        if (!numbers.empty()) std::memcpy(numbers.data(), body.data(), head.bytes);
        return;
      }
      case frame_kind::abort:
        from.gave_up = true;
        return fail(std::string(reinterpret_cast<const char*>(body.data()), head.bytes));
      case frame_kind::leaving:
        say(peer, {.kind = frame_kind::released});
        from.left = true;
        if (!leaves_ && std::any_of(channels_.begin(), channels_.end(),
                                    [&](const group_channel& c) { return c.peer == peer && !c.waiting.empty(); }))
          fail(text_of_lost(peer));
        return;
      case frame_kind::released:
        from.released = true;
        return;
      case frame_kind::ask:
        return say(peer, {.kind = frame_kind::answer, .number = head.number});
      case frame_kind::answer:
        from.answered_to = head.number;
        return;
    }
  }

  void end(group_transfer& t, bool sent) {
    t.end_s = steady_now_s();
    t.ended.store(true, std::memory_order_release);  // from then on it may be gone
    (sent ? sent_ : received_) = true;
    if (also_) also_();
  }

  void fail(const std::string& reason) {
    if (std::exchange(aborted_, true)) return;
    reason_ = reason;
    for (auto& c : channels_) c.waiting.clear();
    for (auto& p : peers_) {
      // Of tensors, no more than the frame that is under way.
      std::list<frame> begun;
      if (p.begun) begun.splice(begun.begin(), p.outgoing, p.outgoing.begin());
      p.outgoing.remove_if([](const frame& f) { return f.transfer != nullptr; });
      p.outgoing.splice(p.outgoing.begin(), begun);
    }
    for (int p = 0; p < ranks_; ++p)
      if (p != rank_) say(p, {.kind = frame_kind::abort}, reason_.data(), reason_.size());
    wake_.notify_all();
    if (also_) also_();
  }

  /// A frame of a tensor that is under way takes as long as the network does. What a peer that has stopped does not take, or
  /// send, is given up with the connection.
  void let_go(lock& hold) {
    const auto none = [&] {
      return std::none_of(peers_.begin(), peers_.end(), [](const peer_state& p) { return p.reads || p.writes; });
    };
    if (await(hold, deadline_in(5), none)) return;
    stop();
    wake_.wait(hold, none);
  }
  /// Ends all threads.
  void stop() {
    stopped_ = true;
    for (auto& p : peers_) {
      for (const auto& work : {p.receiving, p.sending})
        if (work && !polls_) work->abort();
      p.more.notify_all();
    }
  }

  /// The thread of a peer that sends, or receives, ends. Without guard_.
  void lose(int peer, bool sends, const std::string& text) {
    const lock hold(guard_);
    auto& p = at(peers_, peer);
    (sends ? p.writes : p.reads) = false;
    p.left = true;
    if (sends) p.begun = false;
    if (!p.begun) p.outgoing.clear();
    if (!stopped_ && !leaves_) fail("rank " + std::to_string(peer) + " was lost: " + text.substr(0, text.find('\n')));
    wake_.notify_all();
  }

  [[nodiscard]] bool is_said() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const peer_state& p) { return p.outgoing.empty(); });
  }

  /// Whether something has come about in time.
  template <class Done>
  bool await(lock& hold, deadline_time until, const Done& done) {
    for (auto w = stood_still_.begin(until);;) {
      if (done()) return true;
      const bool over = stood_still_.is_over(w);
      if (const auto seconds = stood_still_.news(); seconds && options_.say)
        options_.say("rank " + std::to_string(rank_) + ": this process stood still for " +
                     std::to_string(static_cast<long long>(*seconds + 0.5)) + " s, which its deadlines do not count");
      if (over) return false;
      wake_.wait_until(hold, w.next());
    }
  }

  [[nodiscard]] static std::string text_of_lost(int peer) { return "rank " + std::to_string(peer) + " has left"; }
  template <class Done>
  [[nodiscard]] int first_without(const Done& done) const {
    for (int p = 0; p < ranks_; ++p)
      if (p != rank_ && !done(at(peers_, p))) return p;
    return -1;
  }
  template <class Done>
  [[nodiscard]] std::string ranks_without(const Done& done) const {
    std::string names;
    int count = 0;
    for (int p = 0; p < ranks_; ++p)
      if (p != rank_ && !done(at(peers_, p))) names += (count++ > 0 ? ", " : "") + std::to_string(p);
    return count == 1 ? "rank " + names + " has" : "ranks " + names + " have";
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  torch_group_options options_;
  int rank_ = 0, ranks_ = 1;
  bool polls_ = false;  ///< works are asked whether they have ended; Gloo's do not tell, and are waited for
  mutable std::mutex guard_;
  std::mutex calls_;  ///< of send and receive, which count
  std::condition_variable wake_;
  std::deque<peer_state> peers_;
  std::deque<group_channel> channels_;
  std::unordered_map<edge, group_channel*, edge_hash> by_edge_;
  std::uint64_t round_ = 0, questions_ = 0, bytes_sent_ = 0;
  std::string reason_;
  bool aborted_ = false;
  bool leaves_ = false;
  bool received_ = false, sent_ = false;  ///< since the last wait for them
  std::atomic<bool> stopped_{false};
  std::function<void()> also_;  ///< rung
  standstill stood_still_;
  int exceptions_ = std::uncaught_exceptions();  ///< under way since before
};

}  // namespace detail

}  // namespace hetsched
