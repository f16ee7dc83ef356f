// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/inference/inference_pipeline_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

enum class inference_step : std::int32_t {
  compute,  ///< the stage's input
  anew,     ///< the same, with a new state
  failed,   ///< a stage has failed at it: the text says why
  release,  ///< the request has ended: its state goes
  alive,    ///< the first rank has nothing to do
  stop,     ///< the last message
};

/// What goes from stage to stage, and from the last one to the first.
template <class Tensor>
struct inference_message {
  inference_step step = inference_step::alive;
  std::int64_t request = 0;
  std::string text;
  Tensor tensor;
};

/// Of fixed size: a receiver learns from it what comes behind.
struct inference_header {
  static constexpr std::size_t most_dimensions = 8;
  static constexpr std::size_t most_text_bytes = 1 << 16;
  static constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;
  std::int64_t request = 0;
  std::uint64_t text_bytes = 0;
  std::int32_t step = 0;
  std::uint32_t dimensions = 0;
  std::array<std::uint64_t, most_dimensions> extents{};
};

[[nodiscard]] constexpr bool carries_tensor(inference_step s) {
  return s == inference_step::compute || s == inference_step::anew;
}

/// Whether a header can have come from a rank of this library.
[[nodiscard]] bool is_plausible(const inference_header& h);

/// Throws: input_error for a tensor of more dimensions than a header has.
template <class Tensor>
void require_sendable(const Tensor& t) {
  if (const auto n = shape_of(t).size(); n > inference_header::most_dimensions)
    throw input_error("a tensor of " + std::to_string(n) + " dimensions cannot go to the next stage");
}

[[nodiscard]] inline stamp inference_stamp(const edge& e, std::int64_t number) {
  return {.step = number, .microbatch = 0, .what = e.what, .direction = e.direction, .stage = e.stage};
}

/// Messages to the next rank. Sends hold up nobody.
template <class Tensor, class Communicator>
class inference_outbox {
 public:
  inference_outbox(Communicator& comm, const edge& e) : comm_(&comm), edge_(e), channel_(comm.open(e)) {}

  /// Requires: the tensor can be sent.
  void post(inference_message<Tensor> m) {
    auto one = std::make_unique<letter>();
    one->text = std::move(m.text);
    one->text.resize(std::min(one->text.size(), inference_header::most_text_bytes));
    one->header = {.request = m.request, .text_bytes = one->text.size(), .step = static_cast<std::int32_t>(m.step)};
    if (carries_tensor(m.step)) {
      one->tensor = std::move(m.tensor);
      const auto shape = shape_of(one->tensor);
      HETSCHED_EXPECTS(shape.size() <= inference_header::most_dimensions);
      one->header.dimensions = static_cast<std::uint32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), one->header.extents.begin());
      one->has_tensor = elements(one->tensor) > 0;
    }
    letters_.push_back(std::move(one));
    auto& l = *letters_.back();
    const auto s = inference_stamp(edge_, number_++);
    comm_->post_send_bytes(channel_, s, std::as_bytes(std::span(&l.header, 1)), l.operations[0]);
    if (!l.text.empty()) comm_->post_send_bytes(channel_, s, std::as_bytes(std::span(l.text)), l.operations[1]);
    if (l.has_tensor) comm_->post_send(channel_, s, l.tensor, l.operations[2]);
  }
  /// Frees what has been received; returns whether that is all.
  bool sweep() {
    while (!letters_.empty() && has_gone(*letters_.front())) letters_.pop_front();
    return letters_.empty();
  }
  [[nodiscard]] const edge& where() const { return edge_; }

 private:
  struct letter {
    inference_header header;
    std::string text;
    Tensor tensor;
    bool has_tensor = false;
    std::array<typename Communicator::operation, 3> operations;
  };
  bool has_gone(letter& l) {
    return comm_->poll(l.operations[0]) && (l.text.empty() || comm_->poll(l.operations[1])) &&
           (!l.has_tensor || comm_->poll(l.operations[2]));
  }

  Communicator* comm_;
  edge edge_;
  int channel_;
  std::int64_t number_ = 0;
  std::deque<std::unique_ptr<letter>> letters_;
};

/// Messages of the rank before.
template <class Tensor, class Communicator>
class inference_inbox {
 public:
  inference_inbox(Communicator& comm, const edge& e) : comm_(&comm), edge_(e), channel_(comm.open(e)) {}

  /// Begins to receive the next message, where none is under way.
  void open() {
    if (begun_) return;
    begun_ = true;
    has_header_ = has_tensor_ = false;
    message_ = {};
    stamp_ = inference_stamp(edge_, number_++);
    comm_->post_receive_bytes(channel_, stamp_, std::as_writable_bytes(std::span(&header_, 1)), operations_[0]);
  }
  /// Whether a whole message is there. Throws: communication_error for one that no rank of this library sends.
  [[nodiscard]] bool poll() {
    open();
    if (!has_header_) {
      if (!comm_->poll(operations_[0])) return false;
      has_header_ = true;
      if (!is_plausible(header_))
        throw communication_error("the " + to_text(edge_) + " brought a message that makes no sense", edge_, no_microbatch,
                                  action{.microbatch = no_microbatch});
      message_.step = static_cast<inference_step>(header_.step);
      message_.request = header_.request;
      message_.text.resize(as_size(header_.text_bytes));
      if (!message_.text.empty())
        comm_->post_receive_bytes(channel_, stamp_, std::as_writable_bytes(std::span(message_.text)), operations_[1]);
      if (carries_tensor(message_.step)) {
        const auto* const first = header_.extents.data();
        message_.tensor = tensor_traits<Tensor>::make(tensor_shape(first, first + header_.dimensions));
        has_tensor_ = elements(message_.tensor) > 0;
        if (has_tensor_) comm_->post_receive(channel_, stamp_, message_.tensor, operations_[2]);
      }
    }
    return (message_.text.empty() || comm_->poll(operations_[1])) && (!has_tensor_ || comm_->poll(operations_[2]));
  }
  /// Requires: poll() has returned true.
  [[nodiscard]] inference_message<Tensor> take() {
    begun_ = false;
    return std::move(message_);
  }
  [[nodiscard]] const edge& where() const { return edge_; }

 private:
  Communicator* comm_;
  edge edge_;
  int channel_;
  std::int64_t number_ = 0;
  bool begun_ = false, has_header_ = false, has_tensor_ = false;
  stamp stamp_;
  inference_header header_;
  inference_message<Tensor> message_;
  std::array<typename Communicator::operation, 3> operations_;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/inference/detail/inference_channel.ipp>
#endif
