// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/faults_test.cpp.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/communicator/detail/shared_memory_group.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// How a tensor gets from a sender to the receiver of a channel: it is swapped with the receiver's.
template <class Tensor>
struct swapping {
  struct lane {};
  static lane open(const edge&) { return {}; }
  static void move(lane&, Tensor& sent, Tensor& taken) {
    using std::swap;
    swap(sent, taken);
  }
};

/// Connects the ranks of one process, a thread each. Channels hold nothing: a send ends when a receive takes its tensor. The
/// tensor is swapped with the receiver's, so types with a cheap swap travel without a copy. Groups of ranks read and write each
/// other's host memory. Once aborted it stays so.
/// Mover: how a tensor travels, instead. open(edge) -> lane, once per channel; move(lane&, sent, taken), by either rank's thread,
/// one at a time on a channel.
template <class Tensor, class Mover = swapping<Tensor>>
class thread_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  static constexpr bool has_host_bytes = detail::on_host<Tensor>;

 public:
  /// All ranks' ends.
  [[nodiscard]] static std::vector<thread_communicator> connect(int ranks, Mover mover = Mover()) {
    const auto shared = std::make_shared<hub>(ranks, std::move(mover));
    std::vector<thread_communicator> ends;
    for (int r = 0; r < ranks; ++r) ends.push_back(thread_communicator(shared, r));
    return ends;
  }

  class operation {
   public:
    double end_s = 0;

   private:
    friend class thread_communicator;
    std::atomic<bool> ended_{false};
    Tensor* tensor_ = nullptr;    ///< null: bytes
    std::span<std::byte> bytes_;  ///< of those that are sent nobody writes
    hetsched::stamp stamp_;
    operation* next_ = nullptr;
  };

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return static_cast<int>(hub_->bells.size()); }

  [[nodiscard]] int open(const edge& e) {
    const std::lock_guard lock(hub_->guard);
    auto& all = hub_->channels;
    auto known = all.find(e);
    if (known == all.end()) known = all.emplace(e, std::make_unique<channel>(e, hub_->mover.open(e))).first;
    open_.push_back(known->second.get());
    return static_cast<int>(open_.size()) - 1;
  }

  void post_send(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, &t, {}, op, &channel::sends); }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, &t, {}, op, &channel::receives); }
  /// See byte_plane. Bytes are copied once, from end to end.
  void post_send_bytes(int number, const stamp& s, std::span<const std::byte> bytes, operation& op) requires has_host_bytes {
    post(number, s, nullptr, {const_cast<std::byte*>(bytes.data()), bytes.size()}, op, &channel::sends);
  }
  void post_receive_bytes(int number, const stamp& s, std::span<std::byte> bytes, operation& op) requires has_host_bytes {
    post(number, s, nullptr, bytes, op, &channel::receives);
  }

  [[nodiscard]] bool poll(operation& op) const { return op.ended_.load(std::memory_order_acquire); }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    auto& own = *at(hub_->bells, rank_);
    std::unique_lock lock(own.guard);
    const auto rung = [&] { return own.received || (sends && own.sent) || hub_->aborted; };
    while (!rung()) {
      own.waits = sends ? bell::for_all : bell::for_receives;
      const auto status = own.rung.wait_until(lock, until);
      own.waits = bell::for_nothing;
      if (status == std::cv_status::timeout && !rung()) return wait_result::deadline;
    }
    own.received = false;
    if (sends) own.sent = false;
    return hub_->aborted ? wait_result::aborted : wait_result::progress;
  }

  /// See waking_plane.
  void on_wake(std::function<void()> ring) {
    auto& own = *at(hub_->bells, rank_);
    const std::lock_guard lock(own.guard);
    own.also = std::move(ring);
  }

  void abort(const std::string& reason) { hub_->abort(reason); }
  [[nodiscard]] std::string failure() const {
    const std::lock_guard lock(hub_->guard);
    return hub_->reason;
  }

  /// See has_groups. Lives as long as any end of the communicator.
  [[nodiscard]] auto open_group(const group_place& place) requires has_host_bytes {
    return detail::shared_memory_group<typename tensor_traits<Tensor>::element>(open_meeting(place), rank_);
  }
  /// Where the threads of a group meet; for collectives of one's own.
  [[nodiscard]] std::shared_ptr<detail::group_meeting> open_meeting(const group_place& place) {
    const std::lock_guard lock(hub_->guard);
    std::size_t i = 0;
    while (i < hub_->groups.size() && hub_->groups[i]->place() != place) ++i;
    if (i == hub_->groups.size()) hub_->groups.push_back(std::make_unique<detail::group_meeting>(place, hub_->aborted));
    return {hub_, hub_->groups[i].get()};
  }

  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return meet(mine, until, [&](const std::shared_ptr<gather_round>& round) { all = round->told; });
  }
  /// See sharing_plane. Two rounds take turns, unless somebody keeps one longer than to the next gather.
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all, deadline_time until) {
    all.reset();
    return meet(mine, until, [&](const std::shared_ptr<gather_round>& round) { all = round; });
  }
  [[nodiscard]] shared_values* shared() const { return &hub_->values; }

 private:
  /// The last rank to come hands out what all have brought; nobody brings more before all have taken it.
  template <class Take>
  [[nodiscard]] wait_result meet(std::span<const double> mine, deadline_time until, Take&& take) {
    auto& m = hub_->meeting;
    std::unique_lock lock(m.guard);
    const auto wait_for = [&](auto&& happened) {
      m.changed.wait_until(lock, until, [&] { return happened() || hub_->aborted; });
      return happened() ? wait_result::progress : hub_->aborted ? wait_result::aborted : wait_result::deadline;
    };
    if (const auto r = wait_for([&] { return m.leaving == 0; }); r != wait_result::progress) return r;
    if (hub_->aborted) return wait_result::aborted;
    at(m.coming->told, rank_).assign(mine.begin(), mine.end());
    if (++m.arrived == ranks()) {
      std::swap(m.coming, m.whole);
      m.whole->number = ++m.rounds;
      if (!m.coming || m.coming.use_count() > 1) m.coming = m.make_round(ranks());
      m.arrived = 0;
      m.leaving = ranks();
      m.changed.notify_all();
    }
    // A round that is complete is so for all, whatever happens next.
    if (const auto r = wait_for([&] { return m.leaving > 0; }); r != wait_result::progress) {
      --m.arrived;  // who has given up must not complete the round of others
      return r;
    }
    take(m.whole);
    if (--m.leaving == 0) m.changed.notify_all();
    return wait_result::progress;
  }

  struct queue {
    operation* first = nullptr;
    operation* last = nullptr;
    void push(operation& op) {
      (first ? last->next_ : first) = &op;
      last = &op;
    }
    operation& pop() {
      operation& op = *first;
      first = op.next_;
      return op;
    }
  };
  struct channel {
    channel(const edge& e, typename Mover::lane l) : where(e), lane(std::move(l)) {}
    edge where;
    [[no_unique_address]] typename Mover::lane lane;
    std::mutex guard;
    queue sends, receives;  // of which one is empty
  };
  /// Wakes a rank. Waking is the most expensive part of a transfer, so it is not done for what the rank does not wait for.
  struct bell {
    enum purpose : std::uint8_t { for_nothing, for_receives, for_all };
    std::mutex guard;
    std::condition_variable rung;
    bool received = false, sent = false;  ///< since the last wait for them
    purpose waits = for_nothing;
    std::function<void()> also;
    void ring(bool of_send) {
      bool wake = false;
      {
        const std::lock_guard lock(guard);
        (of_send ? sent : received) = true;
        wake = waits == for_all || (waits == for_receives && !of_send);
        if (also) also();
      }
      if (wake) rung.notify_one();
    }
  };
  /// Where the ranks gather.
  struct meeting_place {
    std::mutex guard;
    std::condition_variable changed;
    std::shared_ptr<gather_round> coming, whole;  ///< what is brought now; the last that all have brought
    std::uint64_t rounds = 0;
    int arrived = 0, leaving = 0;
    [[nodiscard]] static std::shared_ptr<gather_round> make_round(int ranks) {
      auto round = std::make_shared<gather_round>();
      round->told.resize(as_size(ranks));
      return round;
    }
  };
  struct hub {
    hub(int ranks, Mover how) : mover(std::move(how)) {
      meeting.coming = meeting_place::make_round(ranks);
      for (int r = 0; r < ranks; ++r) bells.push_back(std::make_unique<bell>());
    }
    [[no_unique_address]] Mover mover;
    std::mutex guard;  // of the lists of channels and groups and of the reason
    std::unordered_map<edge, std::unique_ptr<channel>, detail::edge_hash> channels;
    std::vector<std::unique_ptr<detail::group_meeting>> groups;
    std::vector<std::unique_ptr<bell>> bells;
    std::string reason;
    std::atomic<bool> aborted{false};
    meeting_place meeting;
    shared_values values;

    void abort(const std::string& why) {
      const std::lock_guard lock(guard);
      if (reason.empty()) reason = why.empty() ? "aborted" : why;
      aborted = true;
      for (auto& [where, c] : channels) {
        const std::lock_guard hold(c->guard);
        c->sends = c->receives = {};
      }
      for (auto& b : bells) b->ring(false);
      for (auto& g : groups) g->wake();
      const std::lock_guard hold(meeting.guard);
      meeting.changed.notify_all();
    }
  };

  thread_communicator(std::shared_ptr<hub> shared, int rank) : hub_(std::move(shared)), rank_(rank) {}

  void post(int number, const stamp& s, Tensor* t, std::span<std::byte> bytes, operation& op, queue channel::*side) {
    auto& c = *at(open_, number);
    HETSCHED_EXPECTS(rank_ == (side == &channel::sends ? c.where.from : c.where.to));
    op.ended_.store(false, std::memory_order_relaxed);
    op.tensor_ = t;
    op.bytes_ = bytes;
    op.stamp_ = s;
    op.next_ = nullptr;
    std::string mismatch;
    {
      const std::lock_guard lock(c.guard);
      if (hub_->aborted) return;
      (c.*side).push(op);
      if (!c.sends.first || !c.receives.first) return;
      operation& sent = c.sends.pop();
      operation& taken = c.receives.pop();
      mismatch = difference(c.where, sent, taken);
      if (mismatch.empty()) {
        hand_over(c, sent, taken);
        sent.end_s = taken.end_s = steady_now_s();
        sent.ended_.store(true, std::memory_order_release);
        taken.ended_.store(true, std::memory_order_release);
      }
    }
    if (!mismatch.empty()) return hub_->abort(mismatch);
    const bool sending = side == &channel::sends;
    at(hub_->bells, sending ? c.where.to : c.where.from)->ring(!sending);
  }

  static std::span<std::byte> bytes_of(const operation& op) {
    if (!op.tensor_) return op.bytes_;
    return std::as_writable_bytes(std::span(tensor_traits<Tensor>::data(*op.tensor_), detail::elements(*op.tensor_)));
  }
  void hand_over(channel& c, operation& sent, operation& taken) {
    if constexpr (has_host_bytes)
      if (!sent.tensor_ || !taken.tensor_) {
        const auto from = bytes_of(sent);
        if (!from.empty()) std::memcpy(bytes_of(taken).data(), from.data(), from.size());
        return;
      }
    hub_->mover.move(c.lane, *sent.tensor_, *taken.tensor_);
  }

  static std::string difference(const edge& where, const operation& sent, const operation& taken) {
    if (sent.stamp_ != taken.stamp_)
      return to_text(where) + ": sent is " + to_text(sent.stamp_) + ", expected is " + to_text(taken.stamp_);
    if constexpr (has_host_bytes)
      if (!sent.tensor_ || !taken.tensor_) {
        const auto from = bytes_of(sent).size(), to = bytes_of(taken).size();
        return from == to ? std::string()
                          : to_text(where) + ", " + to_text(sent.stamp_) + ": sent are " + std::to_string(from) +
                                " bytes, expected " + std::to_string(to);
      }
    if (!detail::same_shape(*sent.tensor_, *taken.tensor_))
      return to_text(where) + ", " + to_text(sent.stamp_) + ": sent is the shape " +
             detail::extents_text(detail::shape_of(*sent.tensor_)) + ", expected is " +
             detail::extents_text(detail::shape_of(*taken.tensor_));
    return {};
  }

  std::shared_ptr<hub> hub_;
  int rank_;
  std::vector<channel*> open_;
};

}  // namespace hetsched
