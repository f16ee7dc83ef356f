// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// Adds up the gradients of a stage in its two directions, so that both have the sum.
/// Determinism: both get the same bits, as a + b is b + a.
template <class Tensor, class Communicator, class Queue = host_queue>
class direction_exchange {
  using operation = typename Communicator::operation;

 public:
  /// The exchange between two ranks: that of this direction and its peer. `queue`: where gradients are added up.
  direction_exchange(Communicator& comm, int peer, int direction, int stage, std::vector<Tensor*> gradients,
                     Queue queue = Queue())
      : queue_(std::move(queue)),
        gradients_(std::move(gradients)),
        to_{comm.rank(), peer, payload::reduction, direction, stage},
        from_{peer, comm.rank(), payload::reduction, 1 - direction, stage},
        to_channel_(comm.open(to_)),
        from_channel_(comm.open(from_)),
        sends_(std::make_unique<operation[]>(gradients_.size())),
        receives_(std::make_unique<operation[]>(gradients_.size())) {
    for (const Tensor* g : gradients_) {
      outgoing_.push_back(make_tensor<Tensor>(shape_of(*g), queue_));
      incoming_.push_back(make_tensor<Tensor>(shape_of(*g), queue_));
    }
  }
  /// The exchange within one rank.
  direction_exchange(std::vector<Tensor*> gradients, std::vector<Tensor*> twins, Queue queue = Queue())
      : queue_(std::move(queue)), gradients_(std::move(gradients)), twins_(std::move(twins)) {}

  void begin_step() { begun_ = false; }

  void begin(Communicator& comm, std::int64_t step) {
    if (begun_) return;  // the copies of both directions are here, and list it
    begun_ = true;
    const auto stamp_of = [&](const edge& e, std::size_t i) {
      return stamp{step, static_cast<int>(i), e.what, e.direction, e.stage};
    };
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      if (!twins_.empty()) {
        add(*gradients_[i], *twins_[i], queue_);
        assign(*twins_[i], *gradients_[i], queue_);
      } else {
        comm.post_receive(from_channel_, stamp_of(from_, i), incoming_[i], receives_[i]);
        assign(outgoing_[i], *gradients_[i], queue_);
        comm.post_send(to_channel_, stamp_of(to_, i), outgoing_[i], sends_[i]);
      }
  }

  /// Whether it has ended; if so, adds. To be called until it has.
  [[nodiscard]] bool end(Communicator& comm) {
    for (std::size_t i = 0; i < incoming_.size(); ++i)
      if (!comm.poll(receives_[i])) return false;
    for (std::size_t i = 0; i < incoming_.size(); ++i) add(*gradients_[i], incoming_[i], queue_);
    return true;
  }

  [[nodiscard]] bool all_sent(Communicator& comm) {
    for (std::size_t i = 0; i < outgoing_.size(); ++i)
      if (!comm.poll(sends_[i])) return false;
    return true;
  }

  /// Adds what this rank sends and receives.
  void plan(std::int64_t step, std::vector<planned_operation>& group) const {
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      const auto add = [&](const edge& e, int channel, bool sends) {
        const auto bytes = elements(incoming_[i]) * sizeof(typename tensor_traits<Tensor>::element);
        group.push_back({channel, sends, {step, static_cast<int>(i), e.what, e.direction, e.stage}, bytes});
      };
      add(from_, from_channel_, false);
      add(to_, to_channel_, true);
    }
  }

  /// Where this rank's share comes from.
  [[nodiscard]] const edge& from() const { return from_; }

 private:
  [[no_unique_address]] Queue queue_;
  std::vector<Tensor*> gradients_;  ///< of the parameters
  std::vector<Tensor*> twins_;      ///< the other direction's, if it is here
  edge to_, from_;
  int to_channel_ = -1, from_channel_ = -1;
  std::vector<Tensor> outgoing_, incoming_;
  std::unique_ptr<operation[]> sends_, receives_;
  bool begun_ = false;
};

}  // namespace hetsched::detail
