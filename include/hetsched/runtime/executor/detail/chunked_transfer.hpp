// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/staging_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// One rank's end of an edge whose tensors go by way of the hosts in chunks: while one chunk is on the network, the next is
/// copied from the device at one end, and the one before to the device at the other. Chunks follow each other on one channel,
/// with the stamp of their tensor. Tensors are named by their place in the order of sends.
template <class Tensor, class Communicator, class Stager>
class chunked_transfer {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;
  static constexpr bool copies = !std::same_as<Stager, no_stager>;
  static constexpr bool copies_parts =
      requires(Stager & s, const Tensor& from, Tensor& to, std::size_t n, typename Stager::operation& op) {
    s.post_copy_part(from, to, n, n, op);
  };

 public:
  /// Whether such tensors can be sent in chunks at all: by their bytes in host memory.
  static constexpr bool possible =
      byte_plane<Communicator> &&
      (traits::space != memory_space::device || requires(Stager & s, const tensor_shape& shape) { s.make(shape); });

  chunked_transfer(int channel, std::size_t places, std::size_t elements, std::size_t chunk_elements)
      : channel_(channel), elements_(elements), each_(chunk_elements), chunks_((elements + each_ - 1) / each_), states_(places) {
    operations_ = std::make_unique<typename Communicator::operation[]>(places * chunks_);
    if (copies) copies_ = std::make_unique<typename Stager::operation[]>(places * chunks_);
  }

  /// Requires: nothing is under way.
  void begin_step() {
    std::fill(states_.begin(), states_.end(), state{});
    sending_.clear();
    copying_ = 0;
  }
  /// Whether copies are under way: a wait does not hear of their ends.
  [[nodiscard]] bool copying() const { return copying_ > 0; }

  // At the sending end.
  /// Whether there are tensors of which not all is posted.
  [[nodiscard]] bool sending() const { return !sending_.empty(); }
  void copy_out(Stager& stager, std::size_t p, const Tensor& from, Tensor& to) { post_copies(stager, p, chunks_, from, to); }
  /// Whether there is something that can be sent.
  [[nodiscard]] bool copied_any(Stager& stager, std::size_t p) { return copied(stager, p) > 0; }
  void send(Stager& stager, Communicator& comm, std::size_t p, const stamp& s, Tensor& host, bool is_copy) {
    if (!is_copy) states_[p].copied = chunks_;
    states_[p].host = &host;
    states_[p].what = s;
    sending_.push_back(p);
    (void)advance(stager, comm);
  }
  /// Sends what has been copied, in its order. Returns whether there was any.
  bool advance(Stager& stager, Communicator& comm) {
    bool moved = false;
    while (!sending_.empty()) {
      const auto p = sending_.front();
      auto& s = states_[p];
      for (const auto ready = copied(stager, p); s.posted < ready; ++s.posted, moved = true)
        comm.post_send_bytes(channel_, s.what, bytes(*s.host, s.posted), operations_[p * chunks_ + s.posted]);
      if (s.posted < chunks_) break;
      sending_.pop_front();
    }
    return moved;
  }

  // At the receiving end.
  void receive(Communicator& comm, std::size_t p, const stamp& s, Tensor& host) {
    for (auto& k = states_[p].posted; k < chunks_; ++k)
      comm.post_receive_bytes(channel_, s, bytes(host, k), operations_[p * chunks_ + k]);
  }
  [[nodiscard]] bool come_any(Communicator& comm, std::size_t p) { return transferred(comm, p) > 0; }
  /// Copies what has come. Returns whether all of it has been copied.
  bool copy_in(Stager& stager, Communicator& comm, std::size_t p, const Tensor& host, Tensor& to) {
    post_copies(stager, p, transferred(comm, p), host, to);
    return copied(stager, p) == chunks_;
  }

  /// At either end, whether all chunks have been received.
  [[nodiscard]] bool ended(Communicator& comm, std::size_t p) { return transferred(comm, p) == chunks_; }
  [[nodiscard]] double end_s(std::size_t p) const { return operations_[(p + 1) * chunks_ - 1].end_s; }
  [[nodiscard]] double copy_start_s(std::size_t p) const { return copies_[p * chunks_].start_s; }
  [[nodiscard]] double copy_end_s(std::size_t p) const {
    return copies_[copies_parts ? (p + 1) * chunks_ - 1 : p * chunks_].end_s;
  }

 private:
  struct state {
    std::size_t begun = 0, copied = 0;        ///< copies
    std::size_t posted = 0, transferred = 0;  ///< chunks on the network
    Tensor* host = nullptr;
    stamp what{};
  };

  [[nodiscard]] std::size_t length(std::size_t k) const { return std::min(each_, elements_ - k * each_); }
  [[nodiscard]] std::span<std::byte> bytes(Tensor& t, std::size_t k) const {
    return std::as_writable_bytes(std::span<element>(traits::data(t) + k * each_, length(k)));
  }
  /// Posts the copies of chunks up to `last`; of a stager that copies no parts, of all once all are there.
  void post_copies(Stager& stager, std::size_t p, std::size_t last, const Tensor& from, Tensor& to) {
    if constexpr (copies) {
      auto& s = states_[p];
      if constexpr (copies_parts) {
        for (; s.begun < last; ++s.begun, ++copying_)
          stager.post_copy_part(from, to, s.begun * each_, length(s.begun), copies_[p * chunks_ + s.begun]);
      } else if (s.begun == 0 && last == chunks_) {
        stager.post_copy(from, to, copies_[p * chunks_]);
        s.begun = chunks_;
        ++copying_;
      }
    }
  }
  /// How many chunks have been copied; copies end in their order.
  std::size_t copied(Stager& stager, std::size_t p) {
    auto& s = states_[p];
    if constexpr (copies) {
      const std::size_t each = copies_parts ? 1 : chunks_;
      while (s.copied < s.begun && stager.poll(copies_[p * chunks_ + s.copied])) {
        s.copied += each;
        --copying_;
      }
    }
    return s.copied;
  }
  std::size_t transferred(Communicator& comm, std::size_t p) {
    auto& s = states_[p];
    while (s.transferred < s.posted && comm.poll(operations_[p * chunks_ + s.transferred])) ++s.transferred;
    return s.transferred;
  }

  int channel_;
  std::size_t elements_, each_, chunks_;
  std::vector<state> states_;  ///< by place
  std::unique_ptr<typename Communicator::operation[]> operations_;
  std::unique_ptr<typename Stager::operation[]> copies_;
  std::deque<std::size_t> sending_;  ///< places of which not all is posted
  std::size_t copying_ = 0;
};

}  // namespace hetsched::detail
