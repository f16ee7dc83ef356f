// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/mpi/detail/mpi_engine.hpp>
#include <hetsched/mpi/mpi_session.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Connects ranks that are processes, by MPI: those that mpirun, mpiexec or srun has started. Tensors that are sent and received
/// are in host memory, or on a device where MPI takes that (mpi_options::device_memory; else they go by way of a stager, as
/// schedules list it), and are not copied on this side of MPI. What is on a device is handed to MPI when it has been computed, or
/// when nobody uses the memory any more, and as MPI has no queues the host sees to that: in post, poll and wait. It uses two
/// communicators of its own, so it is in nobody's way. A rank that is stuck or cut off fails the others at their deadlines. Where
/// one's process ends, mpirun and its like end all others by themselves. Needs one thread. A handle: copies are the same rank's.
/// The last one waits, at most 5 s, until all others have what was sent to them, and then leaves; if an exception ends it, or a
/// gather has come to its deadline, it aborts all. Once aborted it stays so. All ranks make it, and where there are several, in
/// the same order. A rank that is stopped amid a tensor, or that never answers, cannot be left behind by MPI's means: the first
/// that has to do so says why and ends all processes, or the session does in the end; see mpi_session. Example:
///   mpi_session mpi;
///   mpi_communicator<Tensor> comm(mpi);
///   auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///   for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
template <class Tensor>
class mpi_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  using traits = tensor_traits<Tensor>;
  static constexpr bool may_be_on_device = requires(Tensor & t) {
    traits::buffer(t).space();
    traits::buffer(t).is_ready();
    traits::buffer(t).is_idle();
  };

 public:
  /// Meets all other ranks. Throws: error if they do not come.
  explicit mpi_communicator(mpi_session& mpi, const mpi_options& options = {})
      : engine_(std::make_shared<detail::mpi_engine>(mpi, options)),
        held_back_(std::make_shared<held_back>()),
        device_memory_(options.device_memory.value_or(mpi.takes_device_memory())) {}

  class operation {
   public:
    double end_s = 0;

   private:
    friend class mpi_communicator;
    detail::mpi_transfer transfer_;
  };

  [[nodiscard]] int rank() const { return engine_->rank(); }
  [[nodiscard]] int ranks() const { return engine_->ranks(); }
  /// Of tensors and parts of them, so far.
  [[nodiscard]] std::uint64_t bytes_sent() const { return engine_->bytes_sent(); }

  [[nodiscard]] int open(const edge& e) {
    open_.push_back(&engine_->open(e));
    return static_cast<int>(open_.size()) - 1;
  }

  /// Throws, as post_receive: input_error for a tensor that is on a device, where MPI takes none.
  void post_send(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(at(open_, number)->sending);
    post_tensor(number, s, t, op);
  }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(!at(open_, number)->sending);
    post_tensor(number, s, t, op);
  }
  /// See byte_plane.
  void post_send_bytes(int number, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    HETSCHED_EXPECTS(at(open_, number)->sending);
    post(number, s, {const_cast<std::byte*>(bytes.data()), bytes.size()}, detail::no_shape, op);  // they are only read
  }
  void post_receive_bytes(int number, const stamp& s, std::span<std::byte> bytes, operation& op) {
    HETSCHED_EXPECTS(!at(open_, number)->sending);
    post(number, s, bytes, detail::no_shape, op);
  }

  [[nodiscard]] bool poll(operation& op) const {
    if constexpr (may_be_on_device) (void)post_what_is_ready();
    if (!op.transfer_.ended.load(std::memory_order_acquire)) return false;
    op.end_s = op.transfer_.end_s;
    return true;
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    if constexpr (may_be_on_device)
      // Devices do not wake anybody.
      while (post_what_is_ready()) {
        const auto soon = std::min(until, deadline_time::clock::now() + std::chrono::microseconds(50));
        const auto result = engine_->wait(soon, sends);
        if (result != wait_result::deadline || soon == until) return told(result);
      }
    return told(engine_->wait(until, sends));
  }
  /// See waking_plane. Not of tensors that may be on a device: nobody is woken when that has done with one that is held back.
  void on_wake(std::function<void()> ring) requires(!may_be_on_device) { engine_->on_wake(std::move(ring)); }
  /// See asking_plane.
  [[nodiscard]] wait_result ask() { return told(engine_->ask()); }
  void abort(const std::string& reason) {
    engine_->abort(reason);
    (void)told(wait_result::aborted);
  }
  [[nodiscard]] std::string failure() const { return engine_->failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return told(engine_->gather(mine, all, until));
  }

 private:
  static_assert(traits::space != memory_space::device || may_be_on_device,
                "MPI is to know where a tensor is, and when it may be touched: tensor_traits<T>::buffer(t) has no space(), "
                "is_ready() or is_idle()");
  /// Tensors on a device that others write or read there yet, in the order of the channel.
  struct held_back {
    struct one {
      detail::mpi_channel* channel;
      Tensor* tensor;
      detail::mpi_transfer* transfer;
    };
    std::mutex guard;
    std::deque<one> posts;
  };

  void post_tensor(int number, const stamp& s, Tensor& t, operation& op) {
    const auto bytes = std::as_writable_bytes(std::span(traits::data(t), detail::elements(t)));
    const auto shape = detail::shape_hash(traits::shape(t));
    if constexpr (may_be_on_device)
      if (traits::buffer(t).space() == memory_space::device) {
        if (!device_memory_)
          throw input_error("this MPI takes no tensor that is on a device: the schedule has to list it as copies");
        set(s, bytes, shape, op);
        op.transfer_.ended.store(false, std::memory_order_relaxed);
        {
          const std::lock_guard hold(held_back_->guard);
          held_back_->posts.push_back({at(open_, number), &t, &op.transfer_});
        }
        (void)post_what_is_ready();
        return;
      }
    post(number, s, bytes, shape, op);
  }
  /// Returns whether some are left.
  [[nodiscard]] bool post_what_is_ready() const {
    const std::lock_guard hold(held_back_->guard);
    auto& posts = held_back_->posts;
    std::vector<const detail::mpi_channel*> passed_over;
    std::erase_if(posts, [&](const auto& p) {
      const auto& buffer = traits::buffer(*p.tensor);
      const bool in_turn = std::find(passed_over.begin(), passed_over.end(), p.channel) == passed_over.end();
      const bool is_free = in_turn && (p.channel->sending ? buffer.is_ready() : buffer.is_idle());
      if (is_free)
        engine_->post(*p.channel, *p.transfer);
      else
        passed_over.push_back(p.channel);
      return is_free;
    });
    return !posts.empty();
  }
  /// Behind an abort, tensors are their owners' again.
  wait_result told(wait_result result) const {
    if (result == wait_result::aborted) {
      const std::lock_guard hold(held_back_->guard);
      held_back_->posts.clear();
    }
    return result;
  }
  static void set(const stamp& s, std::span<std::byte> bytes, std::uint64_t shape, operation& op) {
    op.transfer_.data = bytes.data();
    op.transfer_.what = {
        .stamp = s, .bytes = bytes.size(), .elements = bytes.size() / sizeof(typename traits::element), .shape = shape};
  }

  void post(int number, const stamp& s, std::span<std::byte> bytes, std::uint64_t shape, operation& op) {
    set(s, bytes, shape, op);
    engine_->post(*at(open_, number), op.transfer_);
  }

  std::shared_ptr<detail::mpi_engine> engine_;
  std::shared_ptr<held_back> held_back_;
  bool device_memory_ = false;
  std::vector<detail::mpi_channel*> open_;
};

}  // namespace hetsched
