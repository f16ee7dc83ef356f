// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Another communicator as it would be over slower links, to rehearse mixed networks on one machine. Each rank has a wire to
/// each other one. Tensors pass it one by one in the order of their sends, bytes / bandwidth each, arrive latency_s later,
/// and are then sent over the inner communicator. They are never faster than the link, and later by what the inner
/// communicator and the host's timers take. What ranks gather arrives after the longest latency. Every rank's end has one
/// thread, which sends what has arrived. Copies are one end, which lives as long as any of them.
template <class Inner>
class shaped_communicator {
  using inner_operation = typename Inner::operation;

 public:
  class operation {
   public:
    double end_s = 0;

   private:
    friend class shaped_communicator;
    inner_operation inner_;
    std::atomic<bool> posted_{false};  ///< inside
  };

  /// `link_of`: (from, to) -> link, between two ranks of the communicator; called for to != from with this rank as from, and,
  /// for the latency of what is gathered, as to.
  /// Throws: input_error for a bandwidth that is not positive (infinity is), or a latency that is not finite and >= 0.
  template <class LinkOf>
  shaped_communicator(Inner inner, LinkOf&& link_of) : end_(std::make_shared<end>(std::move(inner))) {
    auto& e = *end_;
    const int me = e.inner.rank(), ranks = e.inner.ranks();
    const auto checked = [&](int from, int to) {
      const link l = link_of(from, to);
      if (!(l.bandwidth > 0) || !(l.latency_s >= 0 && l.latency_s < 1e9))
        throw input_error("the link from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
                          " needs a bandwidth > 0 and a latency >= 0");
      return l;
    };
    e.wires.resize(as_size(ranks));
    for (int r = 0; r < ranks; ++r) {
      if (r == me) continue;
      at(e.wires, r).speed = checked(me, r);
      e.gather_latency_s = std::max(e.gather_latency_s, checked(r, me).latency_s);
    }
    e.timer = std::jthread([&e](const std::stop_token& stop) { e.deliver(stop); });
  }

  [[nodiscard]] int rank() const { return end_->inner.rank(); }
  [[nodiscard]] int ranks() const { return end_->inner.ranks(); }

  [[nodiscard]] int open(const edge& e) {
    const std::lock_guard lock(end_->guard);
    const int channel = end_->inner.open(e);
    const auto c = as_size(channel);
    if (end_->to_of_channel.size() <= c) end_->to_of_channel.resize(c + 1, -1);
    end_->to_of_channel[c] = e.to;
    return channel;
  }

  template <pipeline_tensor Tensor>
  requires communicator<Inner, Tensor>
  void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    depart(detail::elements(t) * sizeof(typename tensor_traits<Tensor>::element),
           {.channel = channel, .what = s, .tensor = &t, .op = &op, .post = [](Inner& inner, const departure& d) {
              inner.post_send(d.channel, d.what, *static_cast<Tensor*>(d.tensor), d.op->inner_);
            }});
  }
  /// See byte_plane.
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) requires byte_plane<Inner> {
    depart(bytes.size(), {.channel = channel, .what = s, .bytes = bytes, .op = &op, .post = [](Inner& inner, const departure& d) {
                            inner.post_send_bytes(d.channel, d.what, d.bytes, d.op->inner_);
                          }});
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) requires byte_plane<Inner> {
    const std::lock_guard lock(end_->guard);
    end_->inner.post_receive_bytes(channel, s, bytes, op.inner_);
    op.posted_.store(true, std::memory_order_relaxed);
  }

  template <pipeline_tensor Tensor>
  requires communicator<Inner, Tensor>
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    const std::lock_guard lock(end_->guard);
    end_->inner.post_receive(channel, s, t, op.inner_);
    op.posted_.store(true, std::memory_order_relaxed);
  }

  [[nodiscard]] bool poll(operation& op) {
    if (!op.posted_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(end_->guard);
    if (!end_->inner.poll(op.inner_)) return false;
    op.end_s = op.inner_.end_s;
    return true;
  }

  /// Waits from one arrival to the next: the inner communicator need not wake this rank for sends that end when they are
  /// posted, and here they are posted when they arrive.
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    auto& e = *end_;
    while (true) {
      auto next = until;
      if (sends) {
        const std::lock_guard lock(e.guard);
        if (std::exchange(e.delivered, false)) return wait_result::progress;
        if (!e.on_their_way.empty()) next = std::min(until, std::max(time_of(e.on_their_way.front().arrival_s), soon()));
      }
      const auto result = e.inner.wait(next, sends);
      if (result != wait_result::deadline || next == until) return result;
    }
  }

  /// See waking_plane.
  void on_wake(std::function<void()> ring) requires waking_plane<Inner> {
    const std::lock_guard lock(end_->guard);
    end_->ring = ring;
    end_->inner.on_wake(std::move(ring));
  }

  void abort(const std::string& reason) {
    const std::lock_guard lock(end_->guard);
    end_->on_their_way.clear();
    end_->inner.abort(reason);
  }
  [[nodiscard]] std::string failure() const {
    const std::lock_guard lock(end_->guard);
    return end_->inner.failure();
  }

  /// See asking_plane.
  [[nodiscard]] wait_result ask() requires asking_plane<Inner> { return end_->inner.ask(); }
  /// See sharing_plane.
  [[nodiscard]] shared_values* shared() const requires sharing_plane<Inner> { return end_->inner.shared(); }
  /// `All`: what the inner one gathers into.
  template <class All>
  [[nodiscard]] wait_result gather(std::span<const double> mine, All& all, deadline_time until) requires requires(Inner& inner) {
    inner.gather(mine, all, until);
  }
  {
    auto& e = *end_;
    if (const auto result = e.inner.gather(mine, all, until); result != wait_result::progress) return result;
    const auto arrival = time_of(steady_now_s() + e.gather_latency_s);
    while (std::chrono::steady_clock::now() < arrival) {
      // What one rank has, all have: only the delay may end early.
      if (e.inner.wait(arrival, false) == wait_result::aborted) break;
    }
    return wait_result::progress;
  }

 private:
  struct departure {
    double arrival_s = 0;
    std::uint64_t number = 0;  ///< of those that arrive together, the first goes first
    int channel = -1;
    stamp what{};
    void* tensor = nullptr;
    std::span<const std::byte> bytes{};  ///< in place of a tensor
    operation* op = nullptr;
    void (*post)(Inner&, const departure&) = nullptr;
  };
  /// Puts a tensor of so many bytes on its wire.
  void depart(std::size_t bytes, departure d) {
    auto& e = *end_;
    d.op->posted_.store(false, std::memory_order_relaxed);
    const std::lock_guard lock(e.guard);
    auto& w = at(e.wires, at(e.to_of_channel, d.channel));
    w.free_s = std::max(steady_now_s(), w.free_s) + static_cast<double>(bytes) / w.speed.bandwidth;
    d.arrival_s = w.free_s + w.speed.latency_s;
    d.number = e.sends++;
    e.on_their_way.push_back(d);
    std::push_heap(e.on_their_way.begin(), e.on_their_way.end(), later);
    e.changed.notify_one();
  }
  static bool later(const departure& a, const departure& b) {
    return a.arrival_s != b.arrival_s ? a.arrival_s > b.arrival_s : a.number > b.number;
  }
  static deadline_time time_of(double steady_s) {
    return deadline_time(std::chrono::duration_cast<deadline_time::duration>(std::chrono::duration<double>(steady_s)));
  }
  static deadline_time soon() { return std::chrono::steady_clock::now() + std::chrono::microseconds(100); }

  struct wire {
    link speed;
    double free_s = 0;  ///< when the last tensor has left it
  };
  struct end {
    explicit end(Inner i) : inner(std::move(i)) {}

    void deliver(const std::stop_token& stop) {
      std::unique_lock lock(guard);
      while (!stop.stop_requested()) {
        if (on_their_way.empty()) {
          changed.wait(lock, stop, [&] { return !on_their_way.empty(); });
          continue;
        }
        const double arrival_s = on_their_way.front().arrival_s;
        if (steady_now_s() < arrival_s) {
          changed.wait_until(lock, stop, time_of(arrival_s),
                             [&] { return on_their_way.empty() || on_their_way.front().arrival_s < arrival_s; });
          continue;
        }
        std::pop_heap(on_their_way.begin(), on_their_way.end(), later);
        const departure d = on_their_way.back();
        on_their_way.pop_back();
        d.post(inner, d);
        d.op->posted_.store(true, std::memory_order_release);
        delivered = true;
        if (ring) ring();
      }
    }

    mutable std::mutex guard;  ///< of everything, and of the inner one but for its wait and gather
    std::condition_variable_any changed;
    Inner inner;
    std::vector<wire> wires;  ///< by rank
    double gather_latency_s = 0;
    std::vector<int> to_of_channel;
    std::vector<departure> on_their_way;  ///< a heap, the next one first
    std::uint64_t sends = 0;
    bool delivered = false;  ///< since the last wait for sends
    std::function<void()> ring;
    std::jthread timer;  ///< last, so that it ends first
  };

  std::shared_ptr<end> end_;
};

}  // namespace hetsched
