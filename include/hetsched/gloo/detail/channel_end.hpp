// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/gloo/detail/frame.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// A send or receive of bytes, on its way.
struct gloo_transfer {
  std::atomic<bool> ended{false};
  double end_s = 0;
  char* data = nullptr;
  tensor_header header;
  std::size_t written = 0;  ///< of a send: bytes of header and data that have left
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
  [[nodiscard]] gloo_transfer* find(std::uint64_t number) const {
    auto* t = first;
    while (t && t->header.note.number != number) t = t->next;
    return t;
  }
};

/// What is to be written of a queue, at most `most` bytes; returns how many parts and bytes these are.
std::pair<std::size_t, std::size_t> parts_of(const transfer_queue& queue, std::span<iovec> parts, std::size_t most);
/// So many bytes of a queue have been written; calls done(transfer) for those that are whole.
template <class Done>
void take_written(transfer_queue& queue, std::size_t bytes, const Done& done) {
  while (queue.first) {
    auto& t = *queue.first;
    const std::size_t all = sizeof(tensor_header) + t.header.note.bytes, part = std::min(bytes, all - t.written);
    t.written += part;
    bytes -= part;
    if (t.written < all) return;
    queue.pop();
    done(t);
  }
}

/// A tensor that has come before its receive was posted.
struct early_tensor {
  tensor_note note;
  char bytes[small_tensor];
  bool whole = false;
  early_tensor* next = nullptr;
};

/// Blocks for such tensors; as many as have been needed at a time.
class early_blocks {
 public:
  early_tensor& take(const tensor_note& note) {
    if (!spare_) spare_ = &all_.emplace_back();
    auto& block = *std::exchange(spare_, spare_->next);
    block.note = note;
    block.whole = false;
    block.next = nullptr;
    return block;
  }
  void give_back(early_tensor& block) { block.next = std::exchange(spare_, &block); }

 private:
  std::deque<early_tensor> all_;
  early_tensor* spare_ = nullptr;
};

/// One end of a channel.
struct channel_end {
  edge where;
  int peer = 0;
  bool sending = false;
  std::uint64_t posted = 0;         ///< transfers, so far
  std::uint64_t moved = 0;          ///< tensors that have gone to, or come from, the connection
  std::uint64_t announced = 0;      ///< of a sending end: tensors that have been, up to one; of the other: that have been to it
  transfer_queue transfers;         ///< that wait
  std::vector<tensor_note> wanted;  ///< at the other end of a sending one; those before wanted_first are done
  std::size_t wanted_first = 0;
  early_tensor* early_first = nullptr;
  early_tensor* early_last = nullptr;
};

/// All ends that this rank, or another, has opened.
struct channel_ends {
  std::deque<channel_end> all;
  std::unordered_map<edge, channel_end*, edge_hash> by_edge;

  channel_end& find(const edge& e, int own_rank) {
    if (const auto known = by_edge.find(e); known != by_edge.end()) return *known->second;
    auto& c = all.emplace_back();
    by_edge.emplace(e, &c);
    c.where = e;
    c.sending = e.from == own_rank;
    c.peer = c.sending ? e.to : e.from;
    return c;
  }
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/channel_end.ipp>
#endif
