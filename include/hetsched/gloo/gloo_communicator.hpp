// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
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
#include <hetsched/gloo/detail/channel_end.hpp>
#include <hetsched/gloo/detail/channel_engine.hpp>
#include <hetsched/gloo/detail/frame.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/stranger.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Connects ranks that are processes, on one host or several. They meet in a store of Gloo, and talk over sockets of TCP of their
/// own, two between every two; of more than 16 ranks, between those that share an edge, and along a tree.
/// Tensors that are sent and received are in host memory (what is on a device goes by way of a stager, as schedules list it);
/// those of more than 16 KiB are not copied on this side of the sockets.
/// Ranks prove to each other that they belong to the run; whoever else connects is turned away.
/// A rank whose process ends or whose connection is closed fails all others at once; one that is stuck or cut off, at their
/// deadlines. Needs one thread.
/// A handle: copies are the same rank's. The last one waits, at most 5 s, until all others have what was sent to them, and
/// then ends the connections; if an exception ends it, or a gather has come to its deadline, it aborts all. Once aborted it stays
/// so.
/// Example:
///   gloo_communicator<Tensor> comm(place_from_environment(), {.rendezvous = "file:/shared/rendezvous"});
///   auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///   for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
template <class Tensor>
class gloo_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  using traits = tensor_traits<Tensor>;

 public:
  /// Meets all other ranks.
  /// Throws: input_error or error that says which rank has not come, or what cannot be used.
  gloo_communicator(const process_place& place, const gloo_options& options)
      : engine_(std::make_shared<detail::channel_engine>(detail::connect_mesh(place, options))) {
    engine_->meet_all(deadline_in(options.connect_deadline_s));
    detail::forget_addresses(engine_->mesh());
  }

  class operation {
   public:
    double end_s = 0;

   private:
    friend class gloo_communicator;
    detail::gloo_transfer transfer_;
  };

  [[nodiscard]] int rank() const { return engine_->rank(); }
  [[nodiscard]] int ranks() const { return engine_->ranks(); }
  /// Of tensors and parts of them, so far.
  [[nodiscard]] std::uint64_t bytes_sent() const { return engine_->bytes_sent(); }
  /// Who connected to this rank while all met or, of more than 16 ranks, so far, and could not prove to belong to the run.
  [[nodiscard]] std::vector<stranger> strangers() const { return engine_->strangers(); }

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
        throw input_error("a tensor on a device cannot be sent over sockets: the schedule has to list it as copies");
    static_assert(
        traits::space != memory_space::device || requires { traits::buffer(t).space(); },
        "sockets send from host memory: tensor_traits<T>::buffer(t).space() is to tell where a tensor is");
    return std::span(traits::data(t), detail::elements(t));
  }

  void post(int number, const stamp& s, std::span<std::byte> bytes, std::uint64_t shape, operation& op) {
    auto& transfer = op.transfer_;
    transfer.data = reinterpret_cast<char*>(bytes.data());
    transfer.header.note = {.bytes = bytes.size(), .elements = bytes.size() / sizeof(typename traits::element), .shape = shape};
    engine_->post(*at(open_, number), transfer, s);
  }

  std::shared_ptr<detail::channel_engine> engine_;
  std::vector<detail::channel_end*> open_;
};

}  // namespace hetsched
