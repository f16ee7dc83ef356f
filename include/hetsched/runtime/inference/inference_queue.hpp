// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// What the first stage is to compute on in the next step of a request.
template <class Tensor>
struct inference_input {
  Tensor tensor;
  bool anew = false;  ///< all stages begin the step with a new state of the request, as if it had just come
};

/// A request: steps through all stages, each with the last one's result.
template <class Tensor>
struct inference_request {
  Tensor input;  ///< of the first step
  /// Called on the first rank's thread with what the last stage has returned; nothing: the request is finished. What it throws
  /// fails the request.
  std::function<std::optional<inference_input<Tensor>>(Tensor)> next;
  double deadline_s = infinity;  ///< from its submission to its end
};

enum class inference_end : std::uint8_t {
  finished,
  cancelled,
  expired,  ///< its deadline has come
  failed,   ///< a layer, or next, has thrown
  lost,     ///< the pipeline has failed
};

struct inference_result {
  inference_end how = inference_end::finished;
  std::string why;  ///< empty if it is finished
  friend bool operator==(const inference_result&, const inference_result&) = default;
};

namespace detail {

/// Shared by a queue, its tickets and who answers it.
struct inference_desk {
  std::mutex guard;
  std::condition_variable rung, changed;  ///< for who answers; for who has asked
  bool has_rung = false;

  void ring();
  /// Until it has been rung since the last such wait.
  void wait(deadline_time until);
};

/// Guarded by its desk.
struct inference_slip {
  bool cancelled = false;
  deadline_time until;
  std::optional<inference_result> result;
};

template <class Tensor>
struct inference_entry {
  inference_request<Tensor> request;
  std::shared_ptr<inference_slip> slip;
};

/// Why a request is to end before its next step, if it is.
[[nodiscard]] std::optional<inference_result> early_end(inference_desk& desk, const inference_slip& s, deadline_time now);

void tell(inference_desk& desk, inference_slip& s, inference_result r);

template <class Tensor>
class inference_counter;

}  // namespace detail

/// What is left with who has submitted a request; a handle. Any thread may use it, after the queue's end, too.
class inference_ticket {
 public:
  inference_ticket(std::shared_ptr<detail::inference_desk> desk, std::shared_ptr<detail::inference_slip> slip)
      : desk_(std::move(desk)), slip_(std::move(slip)) {}

  /// The request ends before its next step, unless it has ended.
  void cancel();
  /// How the request has ended; none: it has not within so many seconds.
  [[nodiscard]] std::optional<inference_result> wait_for(double seconds) const;
  [[nodiscard]] inference_result wait() const;

 private:
  std::shared_ptr<detail::inference_desk> desk_;
  std::shared_ptr<detail::inference_slip> slip_;
};

/// Requests that wait for lead_inference, first come, first served. Any thread may submit. What still waits at its end is
/// cancelled.
template <pipeline_tensor Tensor>
class inference_queue {
 public:
  /// `capacity`: how many requests may wait, at least one.
  explicit inference_queue(std::size_t capacity = 64)
      : capacity_(std::max<std::size_t>(capacity, 1)), desk_(std::make_shared<detail::inference_desk>()) {}
  inference_queue(const inference_queue&) = delete;
  inference_queue& operator=(const inference_queue&) = delete;
  ~inference_queue() { end({inference_end::cancelled, "the queue has ended"}); }

  /// Waits while the queue is full. Where it is closed, or its pipeline has failed, the request has ended when this returns.
  inference_ticket submit(inference_request<Tensor> r) {
    std::unique_lock lock(desk_->guard);
    desk_->changed.wait(lock, [&] { return waiting_.size() < capacity_ || closed_; });
    return enter(lock, std::move(r));
  }
  /// None where the queue is full.
  std::optional<inference_ticket> try_submit(inference_request<Tensor> r) {
    std::unique_lock lock(desk_->guard);
    if (waiting_.size() >= capacity_ && !closed_) return std::nullopt;
    return enter(lock, std::move(r));
  }
  /// No more requests: lead_inference returns when those that are there have ended.
  void close() {
    {
      const std::lock_guard lock(desk_->guard);
      if (!closed_) closed_ = inference_result{inference_end::cancelled, "the queue is closed"};
    }
    desk_->changed.notify_all();
    desk_->ring();
  }

 private:
  friend class detail::inference_counter<Tensor>;
  using entry = detail::inference_entry<Tensor>;

  inference_ticket enter(std::unique_lock<std::mutex>& lock, inference_request<Tensor> r) {
    auto slip = std::make_shared<detail::inference_slip>();
    slip->until = deadline_in(r.deadline_s);
    inference_ticket ticket(desk_, slip);
    if (closed_) {
      slip->result = closed_;
      return ticket;
    }
    waiting_.push_back({std::move(r), std::move(slip)});
    lock.unlock();
    desk_->ring();
    return ticket;
  }
  /// Closes it, and ends what waits.
  void end(const inference_result& how) {
    std::deque<entry> left;
    {
      const std::lock_guard lock(desk_->guard);
      closed_ = how;
      left.swap(waiting_);
      for (auto& e : left)
        if (!e.slip->result) e.slip->result = how;
    }
    desk_->changed.notify_all();
  }

  std::size_t capacity_;
  std::shared_ptr<detail::inference_desk> desk_;
  std::deque<entry> waiting_;
  std::optional<inference_result> closed_;  ///< what ends those that come now
};

namespace detail {

/// The side of a queue from which it is answered.
template <class Tensor>
class inference_counter {
 public:
  explicit inference_counter(inference_queue<Tensor>& q) : queue_(&q) {}

  [[nodiscard]] const std::shared_ptr<inference_desk>& desk() const { return queue_->desk_; }

  /// The next request, if one waits.
  [[nodiscard]] std::optional<inference_entry<Tensor>> take() {
    std::optional<inference_entry<Tensor>> first;
    {
      const std::lock_guard lock(desk()->guard);
      if (queue_->waiting_.empty()) return first;
      first.emplace(std::move(queue_->waiting_.front()));
      queue_->waiting_.pop_front();
    }
    desk()->changed.notify_all();
    return first;
  }
  /// Ends those that are cancelled or late while they wait, and returns the earliest deadline of the others.
  deadline_time sweep(deadline_time now) {
    std::vector<inference_entry<Tensor>> ended;  // what they hold goes when the desk is free
    auto earliest = deadline_in(1e9);
    {
      const std::lock_guard lock(desk()->guard);
      auto& waiting = queue_->waiting_;
      for (auto& e : waiting) {
        if (e.slip->cancelled)
          e.slip->result = inference_result{inference_end::cancelled, "cancelled"};
        else if (e.slip->until <= now)
          e.slip->result = inference_result{inference_end::expired, "not begun at its deadline"};
        else
          earliest = std::min(earliest, e.slip->until);
        if (e.slip->result) ended.push_back(std::move(e));
      }
      std::erase_if(waiting, [](const auto& e) { return !e.slip || e.slip->result; });
    }
    if (!ended.empty()) desk()->changed.notify_all();
    return earliest;
  }
  /// Whether no request waits, and none will come.
  [[nodiscard]] bool done() const {
    const std::lock_guard lock(desk()->guard);
    return queue_->closed_ && queue_->waiting_.empty();
  }
  void fail(const std::string& why) { queue_->end({inference_end::lost, why}); }

 private:
  inference_queue<Tensor>* queue_;
};

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/inference/inference_queue.ipp>
#endif
