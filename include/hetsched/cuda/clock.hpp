// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/clock_test.cpp.

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

/// The clock of a queue's work: an event before and one behind each piece, read when all is done; for profilers, a range of its
/// name around the calls that enqueue it. On a host's queue, and where the devices were told so, the times of these calls.
template <cuda_api Api>
class cuda_clock {
 public:
  cuda_clock() = default;
  /// `names`: of the pieces; those without a name are never timed.
  /// Throws: cuda_error.
  cuda_clock(cuda_queue<Api> queue, std::vector<std::string> names) : cuda_clock() {
    queue_ = std::move(queue);
    names_ = std::move(names);
    times_.resize(names_.size());
    if (queue_.on_host() || !queue_.devices().options().times) return;
    events_.resize(names_.size());
    for (auto& a : anchors_) make(a);
    for (std::size_t k = 0; k < names_.size(); ++k)
      if (!names_[k].empty()) {
        make(events_[k].first);
        make(events_[k].second);
      }
  }
  cuda_clock(cuda_clock&& other) noexcept { swap(other); }
  cuda_clock& operator=(cuda_clock&& other) noexcept {
    cuda_clock taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~cuda_clock() {
    for (const auto e : made_) (void)queue_.api().destroy_event(e);
  }
  void swap(cuda_clock& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(names_, other.names_);
    std::swap(times_, other.times_);
    std::swap(events_, other.events_);
    std::swap(anchors_, other.anchors_);
    std::swap(made_, other.made_);
    std::swap(is_open_, other.is_open_);
  }

  /// Around the calls that enqueue piece k; where these throw, abandon() takes the place of end(k), on the same thread.
  /// Throws: cuda_error.
  void begin(std::size_t k) {
    mark(k, times_[k].first, &std::pair<event, event>::first);
    if (queue_.on_host()) return;
    queue_.api().begin_range(names_[k].c_str());
    is_open_ = true;
  }
  void end(std::size_t k) {
    abandon();
    mark(k, times_[k].second, &std::pair<event, event>::second);
  }
  void abandon() {
    if (std::exchange(is_open_, false)) queue_.api().end_range();
  }
  /// Calls body(), which enqueues piece k, between the two.
  template <class Body>
  void time(std::size_t k, Body&& body) {
    begin(k);
    try {
      body();
    } catch (...) {
      abandon();
      throw;
    }
    end(k);
  }

  /// Reads the times of all pieces that have been timed. The clocks of device and host are compared now: by a moment of the
  /// device between two looks at the host's clock, some 10 us apart; of three, the one whose looks are the closest. Requires: the
  /// queue has done all that was enqueued. Throws: cuda_error.
  void read() {
    if (events_.empty()) return;
    auto& own = *queue_.own();
    double now = 0, apart = infinity, since = 0;
    for (auto& a : anchors_) {
      const double before = steady_now_s();
      own.require(own.api().record(a, own.stream()), "cudaEventRecord");
      own.finish();
      const double after = steady_now_s();
      own.require(own.api().elapsed(since, anchors_[0], a), "cudaEventElapsedTime");
      if (after - before >= apart) continue;
      apart = after - before;
      now = (before + after) / 2 - since;  // of the first anchor
    }
    const auto time_of = [&](event e) {
      double ago = 0;
      own.require(own.api().elapsed(ago, e, anchors_[0]), "cudaEventElapsedTime");
      return now - ago;
    };
    for (std::size_t k = 0; k < events_.size(); ++k)
      if (times_[k].second != 0) times_[k] = {time_of(events_[k].first), time_of(events_[k].second)};
  }
  /// In the time of steady_now_s(), behind read().
  [[nodiscard]] double start_s(std::size_t k) const { return times_[k].first; }
  [[nodiscard]] double end_s(std::size_t k) const { return times_[k].second; }

 private:
  using event = typename Api::event;

  void make(event& e) {
    const auto current = queue_.make_current();
    queue_.own()->require(queue_.api().create_timed_event(e), "cudaEventCreate");
    made_.push_back(e);
  }
  void mark(std::size_t k, double& time, event std::pair<event, event>::*which) {
    time = steady_now_s();
    if (!events_.empty()) queue_.own()->require(queue_.api().record(events_[k].*which, queue_.stream()), "cudaEventRecord");
  }

  cuda_queue<Api> queue_;
  std::vector<std::string> names_;
  std::vector<std::pair<double, double>> times_;
  std::vector<std::pair<event, event>> events_;
  std::array<event, 3> anchors_{};
  std::vector<event> made_;
  bool is_open_ = false;  ///< a range
};

}  // namespace hetsched
