// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/device/steady_time.hpp>

namespace hetsched {

/// A queue of work that is done in its order, while the host goes on. A handle: copies mean the same queue.
///   moment             type: a point in the order of a queue; a default-constructed one has always been reached
///   record() -> moment the end of what has been enqueued so far
///   wait(moment)       what is enqueued from now on begins behind it, of whatever queue it is
///   finish()           holds up the host until everything enqueued has been done
///   moment.reached() -> bool
///                      whether all before it has been done
/// Throws: an error from any of them, where the device has failed.
/// Not checked: that the order is kept, and that record and wait do not hold up the host for longer than a bounded number of
/// records takes.
template <class Q>
concept device_queue = std::copyable<Q> && requires(const Q& q, const typename Q::moment& m) {
  requires std::default_initializable<typename Q::moment>;
  { q.record() } -> std::same_as<typename Q::moment>;
  q.wait(m);
  q.finish();
  { m.reached() } -> std::same_as<bool>;
};

/// Times pieces of work on a queue, each once or never between two reads.
///   begin(k), end(k)           around the calls that enqueue piece k
///   read()                     once the queue has done all of them
///   start_s(k), end_s(k)       of a piece that was timed, behind read(); in the time of steady_now_s()
template <class C>
concept device_clock = std::movable<C> && requires(C& c, const C& read, std::size_t k) {
  c.begin(k);
  c.end(k);
  c.read();
  { read.start_s(k) } -> std::same_as<double>;
  { read.end_s(k) } -> std::same_as<double>;
};

/// Where a rank computes, with the memory and the queues that it has there.
///   queue                       type: a device_queue
///   compute_queue() -> queue    of the layers, the loss, and what is done to gradients
///   transfer_queue() -> queue   of what cuts tensors into slices and puts them together
///   memory_queue() -> queue     tensors that are made on it are in memory that the host reads and writes
///   bind()                      the calling thread enqueues for as long as the result lives
///   make_clock(names)           of work on compute_queue(), a device_clock; names of the pieces, empty for those never timed
///   make_numbers(count)         doubles in host memory that work may write: a type with data(), begin(), end()
/// Optional: stage<Tensor, Stage>, a type, and make_stage(Stage) -> stage<Tensor, Stage>: what a trainer's stages are wrapped in;
/// its stage() is the stage inside; with captures() -> bool, whether gradients have to stay where they are.
/// Tensors know which memory they are in, and by which moment they are ready: see tensor_traits. A queue is all that layers,
/// losses and tensor_traits get to see of a backend.
/// Not checked: any of that.
template <class B>
concept device_backend = std::move_constructible<B> && requires(B& b, std::size_t count, std::vector<std::string> names) {
  requires device_queue<typename B::queue>;
  { b.compute_queue() } -> std::same_as<typename B::queue>;
  { b.transfer_queue() } -> std::same_as<typename B::queue>;
  { b.memory_queue() } -> std::same_as<typename B::queue>;
  { b.bind() } -> std::destructible;
  { b.make_clock(names) } -> device_clock;
  { b.make_numbers(count).data() } -> std::same_as<double*>;
};

/// The queue of a rank that computes on the host: work has been done as soon as it is enqueued.
struct host_queue {
  struct moment {
    [[nodiscard]] static constexpr bool reached() { return true; }
  };
  [[nodiscard]] static constexpr moment record() { return {}; }
  static constexpr void wait(const moment&) {}
  static constexpr void finish() {}
};

/// The clock of a rank that computes on the host.
class host_clock {
 public:
  host_clock() = default;
  explicit host_clock(std::size_t pieces) : times_(pieces) {}
  void begin(std::size_t k) { times_[k].first = steady_now_s(); }
  void end(std::size_t k) { times_[k].second = steady_now_s(); }
  static constexpr void read() {}
  [[nodiscard]] double start_s(std::size_t k) const { return times_[k].first; }
  [[nodiscard]] double end_s(std::size_t k) const { return times_[k].second; }

 private:
  std::vector<std::pair<double, double>> times_;
};

/// The backend of a rank that computes on the host.
struct host_backend {
  using queue = host_queue;
  [[nodiscard]] static constexpr queue compute_queue() { return {}; }
  [[nodiscard]] static constexpr queue transfer_queue() { return {}; }
  [[nodiscard]] static constexpr queue memory_queue() { return {}; }
  struct bound {
    constexpr ~bound() {}  // not trivial: whoever only keeps it uses it
  };
  [[nodiscard]] static constexpr bound bind() { return {}; }
  [[nodiscard]] static host_clock make_clock(const std::vector<std::string>& names) { return host_clock(names.size()); }
  [[nodiscard]] static std::vector<double> make_numbers(std::size_t count) { return std::vector<double>(count); }
};

}  // namespace hetsched
