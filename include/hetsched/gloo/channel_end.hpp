// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include <gloo/transport/unbound_buffer.h>

#include <hetsched/gloo/frame.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// A send or receive of bytes, on its way.
struct gloo_transfer {
  std::atomic<bool> ended{false};
  double end_s = 0;
  char* data = nullptr;
  std::uint64_t bytes = 0, elements = 0, shape = 0;
  hetsched::stamp stamp;
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
  gloo_transfer* next = nullptr;
};

struct transfer_queue {
  gloo_transfer* first = nullptr;
  gloo_transfer* last = nullptr;
  void push(gloo_transfer& t) {
    t.next = nullptr;
    (first ? last->next : first) = &t;
    last = &t;
  }
  gloo_transfer& pop() {
    gloo_transfer& t = *first;
    first = t.next;
    return t;
  }
};

/// One end of a channel.
struct channel_end {
  edge where;
  int peer = 0;
  bool sending = false;
  std::uint64_t slot = 0;
  transfer_queue transfers;           ///< of a receiving end: posted with Gloo
  std::deque<posted_receive> wanted;  ///< at the other end of a sending one
  ::gloo::transport::UnboundBuffer* waits_for = nullptr;
  gloo_transfer* under_way = nullptr;
  std::condition_variable changed;
  std::thread worker;  ///< none, as long as this end has not been opened
};

/// Why a tensor cannot be sent to a receive; empty if it can.
[[nodiscard]] inline std::string difference(const edge& where, const gloo_transfer& sent, const posted_receive& wanted) {
  if (sent.stamp != wanted.expected())
    return to_text(where) + ": sent is " + to_text(sent.stamp) + ", expected is " + to_text(wanted.expected());
  const bool fits = sent.shape == wanted.shape || sent.shape == no_shape || wanted.shape == no_shape;
  if (sent.bytes != wanted.bytes || !fits)
    return to_text(where) + ", " + to_text(sent.stamp) + ": sent are " + std::to_string(sent.elements) + " elements (" +
           std::to_string(sent.bytes) + " bytes), expected " + std::to_string(wanted.elements) + " (" +
           std::to_string(wanted.bytes) + " bytes), or of another shape";
  return {};
}

}  // namespace hetsched::detail
