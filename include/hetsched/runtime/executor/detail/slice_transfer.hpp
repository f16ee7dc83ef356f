// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/slice_messages.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// What one device does in a transfer plan, for as many tensors at once as it has slots: a source sends slices of its own tensor,
/// a destination puts its own tensor together, and both pass on what they are to pass on. A message leaves when everything that
/// overlaps it and is listed in an earlier phase has come to its sender. Each message has a channel of its own, on which tensors
/// follow each other in the order of their places.
/// A message that is a device's whole tensor, and the only one, is sent from there, or received into it, without a copy. Over a
/// byte_plane so is every message that is one run of neighbouring elements of a tensor that this device has.
template <class Tensor, class Communicator, class Queue = host_queue>
class slice_transfer {
  using operation = typename Communicator::operation;
  using traits = tensor_traits<Tensor>;
  static constexpr bool has_bytes = byte_plane<Communicator> && traits::space != memory_space::device;

 public:
  /// `rank_of(device)`: a device's rank. `make`: (shape) -> Tensor, for buffers. `queue`: where tensors are cut and put together.
  template <class RankOf, class Make>
  slice_transfer(Communicator& comm, const transfer_plan& plan, slice_place place, RankOf&& rank_of, Make&& make,
                 Queue queue = Queue())
      : queue_(std::move(queue)) {
    const auto open = [&](const edge& e) { return comm.open(e); };
    auto messages = messages_of(plan, place, rank_of, open, has_bytes);
    own_ = std::move(messages.own);
    source_ = messages.source;
    in_ = std::move(messages.in);
    out_ = std::move(messages.out);
    for (int k = 0; k < place.slots; ++k) {
      auto& s = slots_.emplace_back();
      for (const auto& i : in_) s.in.push_back(i.buffered() ? make(shape_of_slice(i.part, place.merged)) : Tensor{});
      for (const auto& o : out_) s.out.push_back(o.buffered() ? make(shape_of_slice(o.part, place.merged)) : Tensor{});
      s.arriving = std::make_unique<operation[]>(in_.size());
      s.leaving = std::make_unique<operation[]>(out_.size());
      s.come.assign(in_.size(), 0);
      s.posted.assign(out_.size(), 0);
    }
    active_.reserve(slots_.size());
  }

  /// Requires: nothing is under way.
  void begin_step() {
    active_.clear();
    for (auto& o : out_) o.next = 0;
    to_post_ = 0;
  }

  /// Begins the transfer of this device's part of a tensor: what leaves `own`, or what is to come to lie there. It stays where it
  /// is until ended(); a destination's may be taken once it has been received().
  /// Requires: a slot that is not in use; places follow each other from 0 in every step; the tensor has the slice's shape.
  void begin(Communicator& comm, int slot, std::size_t place, const stamp& stamp_of_place, Tensor& own) {
    auto& s = at(slots_, slot);
    s.own = &own;
    s.place = place;
    s.stamp_of_place = stamp_of_place;
    s.to_come = in_.size();
    s.to_post = out_.size();
    to_post_ += s.to_post;
    s.end_s = steady_now_s();
    std::fill(s.come.begin(), s.come.end(), char{0});
    std::fill(s.posted.begin(), s.posted.end(), char{0});
    for (std::size_t i = 0; i < in_.size(); ++i) post_receive(comm, in_[i], s, i);
    active_.push_back(slot);
    (void)advance(comm, s);
  }

  /// Takes what has come, and posts what can leave. Returns whether there was any.
  bool advance(Communicator& comm) {
    bool moved = false;
    for (const int slot : active_)
      if (auto& s = at(slots_, slot); s.to_come + s.to_post > 0) moved = advance(comm, s) || moved;
    return moved;
  }

  /// Whether all that passes through this device in a slot has come and has been posted on.
  [[nodiscard]] bool received(int slot) const {
    const auto& s = at(slots_, slot);
    return s.to_come + s.to_post == 0;
  }
  /// Whether nothing that has begun is left to post.
  [[nodiscard]] bool all_posted() const { return to_post_ == 0; }
  /// Whether all has come and left; the slot can then be used again.
  [[nodiscard]] bool ended(Communicator& comm, int slot) {
    auto& s = at(slots_, slot);
    if (!received(slot)) return false;
    for (std::size_t o = 0; o < out_.size(); ++o) {
      if (!comm.poll(s.leaving[o])) return false;
      if (source_) s.end_s = std::max(s.end_s, s.leaving[o].end_s);
    }
    active_.erase(std::remove(active_.begin(), active_.end(), slot), active_.end());
    return true;
  }
  /// When a tensor had come, or had been received.
  [[nodiscard]] double end_s(int slot) const { return at(slots_, slot).end_s; }

  /// The channel of a message that has not come, else of one that has not been received; of no message, the edge given.
  [[nodiscard]] edge missing(Communicator& comm, int slot, edge otherwise) {
    auto& s = at(slots_, slot);
    for (std::size_t i = 0; i < in_.size(); ++i)
      if (!s.come[i]) return in_[i].where;
    for (std::size_t o = 0; o < out_.size(); ++o)
      if (!s.posted[o] || !comm.poll(s.leaving[o])) return out_[o].where;
    return otherwise;
  }

  /// Adds what this device sends and receives for a tensor to the lists of their phases.
  void plan(const stamp& what, communication_plan& phases) const {
    const auto add = [&](const auto& m, bool sends) {
      phases.resize(std::max(phases.size(), as_size(m.phase) + 1));
      const auto bytes = as_size(element_count(m.part)) * sizeof(typename traits::element);
      at(phases, m.phase).push_back({m.channel, sends, what, bytes});
    };
    for (const auto& i : in_) add(i, false);
    for (const auto& o : out_) add(o, true);
  }

  /// Elements of the buffers of one slot.
  [[nodiscard]] std::size_t buffered() const {
    std::int64_t sum = 0;
    for (const auto& i : in_) sum += i.buffered() ? element_count(i.part) : 0;
    for (const auto& o : out_) sum += o.buffered() ? element_count(o.part) : 0;
    return as_size(sum);
  }

 private:
  using incoming = slice_messages::incoming;
  using outgoing = slice_messages::outgoing;
  struct slot_state {
    std::vector<Tensor> in, out;
    std::unique_ptr<operation[]> arriving, leaving;
    std::vector<char> come, posted;
    Tensor* own = nullptr;
    std::size_t place = 0, to_come = 0, to_post = 0;
    stamp stamp_of_place;
    double end_s = 0;
  };

  /// The bytes of a run.
  static std::span<std::byte> bytes_of(Tensor& t, std::int64_t first, const slice& part) {
    return std::as_writable_bytes(std::span(traits::data(t) + first, as_size(element_count(part))));
  }
  void post_receive(Communicator& comm, const incoming& i, slot_state& s, std::size_t number) {
    if constexpr (has_bytes)
      if (i.run >= 0)
        return comm.post_receive_bytes(i.channel, s.stamp_of_place, bytes_of(*s.own, i.run, i.part), s.arriving[number]);
    comm.post_receive(i.channel, s.stamp_of_place, i.in_place ? *s.own : s.in[number], s.arriving[number]);
  }
  void post_send(Communicator& comm, const outgoing& o, slot_state& s, std::size_t number) {
    if constexpr (has_bytes)
      if (o.run >= 0) {
        const int from = o.copies.front().from;
        Tensor& held = from < 0 ? *s.own : at(s.in, from);
        return comm.post_send_bytes(o.channel, s.stamp_of_place, bytes_of(held, o.run, o.part), s.leaving[number]);
      }
    comm.post_send(o.channel, s.stamp_of_place, o.in_place ? *s.own : s.out[number], s.leaving[number]);
  }

  bool advance(Communicator& comm, slot_state& s) {
    bool moved = false;
    for (std::size_t i = 0; s.to_come > 0 && i < in_.size(); ++i) {
      if (s.come[i] || !comm.poll(s.arriving[i])) continue;
      const auto& m = in_[i];
      if (!source_ && m.buffered() && element_count(m.to_own) > 0) copy_part(*s.own, own_, s.in[i], m.part, m.to_own, queue_);
      if (!source_) s.end_s = steady_now_s();
      s.come[i] = 1;
      --s.to_come;
      moved = true;
    }
    for (std::size_t k = 0; s.to_post > 0 && k < out_.size(); ++k) {
      auto& o = out_[k];
      if (s.posted[k] || o.next != s.place ||
          !std::all_of(o.needs.begin(), o.needs.end(), [&](std::size_t i) { return s.come[i] != 0; }))
        continue;
      if (o.buffered())
        for (const auto& c : o.copies) {
          const auto from = static_cast<std::size_t>(c.from);
          const bool own = c.from < 0 || in_[from].is_own();
          copy_part(s.out[k], o.part, own ? *s.own : s.in[from], own ? own_ : in_[from].part, c.part, queue_);
        }
      post_send(comm, o, s, k);
      s.posted[k] = 1;
      ++o.next;
      --s.to_post;
      --to_post_;
      moved = true;
    }
    return moved;
  }

  [[no_unique_address]] Queue queue_;
  slice own_;
  bool source_ = false;
  std::vector<incoming> in_;
  std::vector<outgoing> out_;
  std::vector<slot_state> slots_;
  std::vector<int> active_;  ///< slots in the order of their places
  std::size_t to_post_ = 0;  ///< messages of all slots
};

}  // namespace hetsched::detail
