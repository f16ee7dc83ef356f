// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
/// are in host memory (what is on a device goes by way of a stager, as schedules list it), and are not copied on this side of
/// MPI. It uses two communicators of its own, so it is in nobody's way. A rank that is stuck or cut off fails the others at their
/// deadlines. Where one's process ends, mpirun and its like end all others by themselves. Needs one thread.
/// A handle: copies are the same rank's. The last one waits, at most 5 s, until all others have what was sent to them, and
/// then leaves; if an exception ends it, or a gather has come to its deadline, it aborts all. Once aborted it stays so. All ranks
/// make it, and where there are several, in the same order.
/// A rank that is stopped amid a tensor, or that never answers, cannot be left behind by MPI's means: the first that has to do so
/// says why and ends all processes, or the session does in the end; see mpi_session.
/// Example:
///   mpi_session mpi;
///   mpi_communicator<Tensor> comm(mpi);
///   auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///   for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
template <class Tensor>
class mpi_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  using traits = tensor_traits<Tensor>;

 public:
  /// Meets all other ranks. Throws: error if they do not come.
  explicit mpi_communicator(mpi_session& mpi, const mpi_options& options = {})
      : engine_(std::make_shared<detail::mpi_engine>(mpi, options)) {}

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

  /// Throws, as post_receive: input_error for a tensor that is on a device.
  void post_send(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(at(open_, number)->sending);
    post(number, s, std::as_writable_bytes(elements_of(t)), detail::shape_hash(traits::shape(t)), op);
  }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(!at(open_, number)->sending);
    post(number, s, std::as_writable_bytes(elements_of(t)), detail::shape_hash(traits::shape(t)), op);
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
    if (!op.transfer_.ended.load(std::memory_order_acquire)) return false;
    op.end_s = op.transfer_.end_s;
    return true;
  }

  [[nodiscard]] wait_result wait(deadline_time until, bool sends) { return engine_->wait(until, sends); }
  /// See waking_plane.
  void on_wake(std::function<void()> ring) { engine_->on_wake(std::move(ring)); }
  /// See asking_plane.
  [[nodiscard]] wait_result ask() { return engine_->ask(); }
  void abort(const std::string& reason) { engine_->abort(reason); }
  [[nodiscard]] std::string failure() const { return engine_->failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return engine_->gather(mine, all, until);
  }

 private:
  [[nodiscard]] static auto elements_of(Tensor& t) {
    if constexpr (requires { traits::buffer(t).space(); })
      if (traits::buffer(t).space() == memory_space::device)
        throw input_error("a tensor on a device cannot be sent over MPI: the schedule has to list it as copies");
    static_assert(
        traits::space != memory_space::device || requires { traits::buffer(t).space(); },
        "MPI sends from host memory: tensor_traits<T>::buffer(t).space() is to tell where a tensor is");
    return std::span(traits::data(t), detail::elements(t));
  }

  void post(int number, const stamp& s, std::span<std::byte> bytes, std::uint64_t shape, operation& op) {
    auto& transfer = op.transfer_;
    transfer.data = bytes.data();
    transfer.what = {
        .stamp = s, .bytes = bytes.size(), .elements = bytes.size() / sizeof(typename traits::element), .shape = shape};
    engine_->post(*at(open_, number), transfer);
  }

  std::shared_ptr<detail::mpi_engine> engine_;
  std::vector<detail::mpi_channel*> open_;
};

}  // namespace hetsched
