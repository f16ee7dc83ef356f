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

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/torch/detail/group_engine.hpp>

namespace hetsched {

/// Connects ranks that are the processes of a group of torch (torch.distributed), by the sends and receives of what it has for
/// the cpu: Gloo; of MPI and UCC it uses the same calls, but no test has run them. Tensors are in host memory, and over Gloo not
/// copied on this side. The group's collectives, and messages under other tags, may go on beside it. It has two threads for each
/// other rank. A rank whose process ends is noticed at once; one that is stuck fails the others at their deadlines, which are the
/// runtime's own: the group's timeout is not used. A handle: copies are the same rank's. The last one waits, at most 5 s, until
/// all others have what was sent to them, and then leaves; if an exception ends it, or a gather has come to its deadline, it
/// aborts all. Once aborted it stays so. Example, in a module of torch.utils.cpp_extension:
///   void train(const c10::intrusive_ptr<c10d::ProcessGroup>& world) {
///     torch_group_communicator<torch::Tensor> comm(world);
///     auto trainer = make_trainer<torch::Tensor>(layout, make_layer, shape_after, comm, adamw);
///     for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
///   }
template <class Tensor>
class torch_group_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  static_assert(detail::on_host<Tensor>, "a process group of torch sends from host memory");
  using traits = tensor_traits<Tensor>;

 public:
  /// Meets all other ranks; all make it. Throws: error if they do not come, input_error for a null group, one of NCCL and a tag
  /// below 0; what torch throws where the group has nothing for the cpu.
  explicit torch_group_communicator(const c10::intrusive_ptr<c10d::Backend>& group, const torch_group_options& options = {})
      : engine_(std::make_shared<detail::group_engine>(group, options)) {
    engine_->meet();
  }
  explicit torch_group_communicator(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const torch_group_options& options = {})
      : torch_group_communicator(group ? group->getBackend(c10::DeviceType::CPU) : c10::intrusive_ptr<c10d::Backend>(), options) {
  }

  class operation {
   public:
    double end_s = 0;

   private:
    friend class torch_group_communicator;
    detail::group_transfer transfer_;
  };

  [[nodiscard]] int rank() const { return engine_->rank(); }
  [[nodiscard]] int ranks() const { return engine_->ranks(); }
  /// Of tensors and parts of them, so far.
  [[nodiscard]] std::uint64_t bytes_sent() const { return engine_->bytes_sent(); }

  [[nodiscard]] int open(const edge& e) {
    open_.push_back(&engine_->open(e));
    return static_cast<int>(open_.size()) - 1;
  }

  void post_send(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(at(open_, number)->sending);
    post(number, s, bytes_of(t), detail::shape_hash(traits::shape(t)), op);
  }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) {
    HETSCHED_EXPECTS(!at(open_, number)->sending);
    post(number, s, bytes_of(t), detail::shape_hash(traits::shape(t)), op);
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
  [[nodiscard]] static std::span<std::byte> bytes_of(Tensor& t) {
    return std::as_writable_bytes(std::span(traits::data(t), detail::elements(t)));
  }

  void post(int number, const stamp& s, std::span<std::byte> bytes, std::uint64_t shape, operation& op) {
    auto& transfer = op.transfer_;
    transfer.data = bytes.data();
    transfer.what = {
        .stamp = s, .bytes = bytes.size(), .elements = bytes.size() / sizeof(typename traits::element), .shape = shape};
    engine_->post(*at(open_, number), transfer);
  }

  std::shared_ptr<detail::group_engine> engine_;
  std::vector<detail::group_channel*> open_;
};

}  // namespace hetsched
