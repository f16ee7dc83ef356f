// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Copies tensors between a device and its host in the background, for transfers that a schedule lists in three phases.
///   operation                  type: a copy under way; start_s, end_s: when it began and ended, on the steady clock
///   post_copy(const Tensor& from, Tensor& to, operation&)
///                              returns at once. Tensors and operation stay where they are until it has ended or the stager is
///                              gone
///   poll(operation&) -> bool   whether it has ended
/// Optional: make(const tensor_shape&) -> Tensor, in host memory that copies are fast to and from.
///           post_copy_part(from, to, first, count, operation&), of elements [first, first + count); copies end in their order
/// One thread at a time uses it.
/// Not checked: any of that.
template <class S, class Tensor>
concept stager = std::move_constructible<S> && requires(S& s, const Tensor& from, Tensor& to, typename S::operation& op) {
  requires std::default_initializable<typename S::operation>;
  { op.start_s } -> std::convertible_to<double>;
  { op.end_s } -> std::convertible_to<double>;
  s.post_copy(from, to, op);
  { s.poll(op) } -> std::same_as<bool>;
};

/// For tensors that are in host memory anyway: the first and the last of the three phases take no time.
struct no_stager {
  struct operation {
    double start_s = 0, end_s = 0;
  };
};

/// For tensors in host memory that are copied all the same, one after the other, on a thread of its own.
template <pipeline_tensor Tensor>
class thread_stager {
 public:
  class operation {
   public:
    double start_s = 0, end_s = 0;

   private:
    friend class thread_stager;
    std::atomic<bool> ended_{false};
    const Tensor* from_ = nullptr;
    Tensor* to_ = nullptr;
    std::size_t first_ = 0, count_ = 0;
    operation* next_ = nullptr;
  };

  thread_stager() : queue_(std::make_unique<queue>()), worker_([q = queue_.get()](std::stop_token stop) { q->work(stop); }) {}
  thread_stager(thread_stager&&) = default;
  thread_stager& operator=(thread_stager&&) = delete;
  ~thread_stager() = default;

  /// Requires: same shape.
  void post_copy(const Tensor& from, Tensor& to, operation& op) { post_copy_part(from, to, 0, detail::elements(to), op); }
  void post_copy_part(const Tensor& from, Tensor& to, std::size_t first, std::size_t count, operation& op) {
    op.ended_.store(false, std::memory_order_relaxed);
    op.from_ = &from;
    op.to_ = &to;
    op.first_ = first;
    op.count_ = count;
    op.next_ = nullptr;
    {
      const std::lock_guard lock(queue_->guard);
      (queue_->first ? queue_->last->next_ : queue_->first) = &op;
      queue_->last = &op;
    }
    queue_->changed.notify_one();
  }
  [[nodiscard]] bool poll(const operation& op) const { return op.ended_.load(std::memory_order_acquire); }

 private:
  struct queue {
    std::mutex guard;
    std::condition_variable_any changed;
    operation* first = nullptr;
    operation* last = nullptr;

    static void copy(operation& op) {
      using traits = tensor_traits<Tensor>;
      if (op.count_ == detail::elements(*op.to_))
        detail::assign(*op.to_, *op.from_);
      else
        std::copy_n(traits::data(*op.from_) + op.first_, op.count_, traits::data(*op.to_) + op.first_);
    }
    void work(const std::stop_token& stop) {
      std::unique_lock lock(guard);
      while (changed.wait(lock, stop, [&] { return first != nullptr; })) {
        if (stop.stop_requested()) return;
        operation& op = *first;
        first = op.next_;
        lock.unlock();
        op.start_s = steady_now_s();
        copy(op);
        op.end_s = steady_now_s();
        op.ended_.store(true, std::memory_order_release);
        lock.lock();
      }
    }
  };
  std::unique_ptr<queue> queue_;
  std::jthread worker_;  ///< last, so that it ends first
};

}  // namespace hetsched
