// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/group/axis_group_test.cpp.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/collective.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// A shape of n elements for a tensor type: with as many extents as it has, if its shape() is an array, else with one.
template <pipeline_tensor Tensor>
[[nodiscard]] tensor_shape flat_shape(std::size_t n) {
  using shape_type = std::remove_cvref_t<decltype(tensor_traits<Tensor>::shape(std::declval<const Tensor&>()))>;
  tensor_shape shape(1, n);
  if constexpr (requires { std::tuple_size<shape_type>::value; })
    shape.insert(shape.begin(), std::tuple_size<shape_type>::value - 1, std::size_t{1});
  return shape;
}

/// Collectives of a group over the sends and receives of any data plane: each rank sends to each other what is its, in one
/// round, or two for large sums. Over a byte_plane elements leave from where they are and, unless they are added, come to where
/// they belong; else they are copied into and out of tensors of their own, which are kept for the next call of the same size.
template <pipeline_tensor Tensor, data_plane<Tensor> Communicator>
class point_to_point_group {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;
  using operation = typename Communicator::operation;
  using counts_type = std::span<const std::size_t>;
  static constexpr bool has_bytes = byte_plane<Communicator>;
  static_assert(traits::space != memory_space::device,
                "collectives over sends and receives copy on the host: the communicator needs open_group for these tensors");

 public:
  point_to_point_group(Communicator comm, const group_place& place)
      : comm_(std::move(comm)),
        place_(place),
        sends_(std::make_unique<operation[]>(place.ranks.size())),
        receives_(std::make_unique<operation[]>(place.ranks.size())),
        sent_(place.ranks.size()),
        received_(place.ranks.size()) {
    for (std::size_t k = 0; k < size(); ++k) {
      const int peer = place.ranks[k], me = comm_.rank();
      if (peer == me) me_ = k;
      to_.push_back(peer == me ? -1 : comm_.open({me, peer, payload::collective, place.direction, place.number}));
      from_.push_back(peer == me ? -1 : comm_.open({peer, me, payload::collective, place.direction, place.number}));
    }
  }

  collective_outcome all_reduce(std::span<element> values, double deadline_s) {
    const std::size_t n = values.size(), ranks = size();
    constexpr std::size_t one_round_bytes = 16384;  // up to here a second round takes longer than more elements
    if (ranks == 2 || n * sizeof(element) <= one_round_bytes) {
      own_.resize(n);
      copy_elements(own_.data(), static_cast<const element*>(values.data()), n);
      return exchange(
          collective_kind::all_reduce, deadline_s, [&](std::size_t) { return std::span<const element>(own_); },
          [&](std::size_t) { return n; }, [&](std::size_t k, const element* part) { sum(values.data(), part, k, n); }, nowhere);
    }
    counts_.resize(ranks);
    for (std::size_t k = 0; k < ranks; ++k) counts_[k] = even_part(n, k + 1, ranks) - even_part(n, k, ranks);
    own_.resize(counts_[me_]);
    auto outcome = scatter(collective_kind::all_reduce, values, own_, counts_, deadline_s);
    if (outcome.result != wait_result::progress) return outcome;
    return collect(collective_kind::all_reduce, own_, values, counts_, deadline_s);
  }
  collective_outcome all_gather(std::span<const element> mine, std::span<element> all, counts_type counts, double deadline_s) {
    return collect(collective_kind::all_gather, mine, all, counts, deadline_s);
  }
  collective_outcome reduce_scatter(std::span<const element> all, std::span<element> mine, counts_type counts,
                                    double deadline_s) {
    // The first arrivals may be put where this rank's own part still is.
    const std::size_t n = counts[me_];
    own_.resize(n);
    auto outcome = scatter(collective_kind::reduce_scatter, all, own_, counts, deadline_s);
    if (outcome.result == wait_result::progress) copy_elements(mine.data(), own_.data(), n);
    return outcome;
  }
  collective_outcome broadcast(std::span<element> values, int root, double deadline_s) {
    const auto r = as_size(root);
    const std::size_t n = values.size();
    return exchange(
        collective_kind::broadcast, deadline_s,
        [&](std::size_t) { return me_ == r ? std::span<const element>(values) : std::span<const element>(); },
        [&](std::size_t k) { return k == r ? n : 0; },
        [&](std::size_t, const element* part) { copy_elements(values.data(), part, n); },
        [&](std::size_t) { return values.data(); });
  }
  collective_outcome all_to_all(std::span<const element> send, counts_type send_counts, std::span<element> receive,
                                counts_type receive_counts, double deadline_s) {
    return exchange(
        collective_kind::all_to_all, deadline_s,
        [&](std::size_t k) { return send.subspan(offset_of(send_counts, k), send_counts[k]); },
        [&](std::size_t k) { return receive_counts[k]; },
        [&](std::size_t k, const element* part) {
          copy_elements(receive.data() + offset_of(receive_counts, k), part, receive_counts[k]);
        },
        [&](std::size_t k) { return receive.data() + offset_of(receive_counts, k); });
  }
  void begin_all_gather(std::span<const element> mine, std::span<element> all, counts_type counts) {
    post(
        collective_kind::all_gather, [&](std::size_t) { return mine; }, [&](std::size_t k) { return counts[k]; },
        [&](std::size_t k) { return all.data() + offset_of(counts, k); });
  }
  collective_outcome end_all_gather(std::span<const element> mine, std::span<element> all, counts_type counts,
                                    double deadline_s) {
    return finish(
        deadline_s, [&](std::size_t) { return mine; }, [&](std::size_t k) { return counts[k]; },
        [&](std::size_t k, const element* part) { copy_elements(all.data() + offset_of(counts, k), part, counts[k]); });
  }
  /// Once the communicator has been aborted, none of its operations touches the spans.
  void settle() {}

 private:
  [[nodiscard]] std::size_t size() const { return place_.ranks.size(); }

  static void sum(element* to, const element* part, std::size_t k, std::size_t n) {
    if (k == 0)
      copy_elements(to, part, n);
    else
      add_elements(to, part, n);
  }
  /// `mine` does not overlap `all`.
  collective_outcome scatter(collective_kind kind, std::span<const element> all, std::span<element> mine, counts_type counts,
                             double deadline_s) {
    return exchange(
        kind, deadline_s, [&](std::size_t k) { return all.subspan(offset_of(counts, k), counts[k]); },
        [&](std::size_t) { return counts[me_]; },
        [&](std::size_t k, const element* part) { sum(mine.data(), part, k, counts[me_]); }, nowhere);
  }
  collective_outcome collect(collective_kind kind, std::span<const element> mine, std::span<element> all, counts_type counts,
                             double deadline_s) {
    return exchange(
        kind, deadline_s, [&](std::size_t) { return mine; }, [&](std::size_t k) { return counts[k]; },
        [&](std::size_t k, const element* part) { copy_elements(all.data() + offset_of(counts, k), part, counts[k]); },
        [&](std::size_t k) { return all.data() + offset_of(counts, k); });
  }

  static element* nowhere(std::size_t) { return nullptr; }

  /// Sends send(k) to each k, this rank itself included, and calls take(k, elements) for all that receive `count(k)` of them, in
  /// the order of ranks. Where into(k) is not null, taking them means to copy them there, which may be done without.
  template <class Send, class Count, class Take, class Into>
  collective_outcome exchange(collective_kind kind, double deadline_s, Send send, Count count, Take take, Into into) {
    post(kind, send, count, into);
    return finish(deadline_s, send, count, take);
  }
  template <class Send, class Count, class Into>
  void post(collective_kind kind, Send send, Count count, Into into) {
    const stamp s{++calls_, static_cast<int>(kind), payload::collective, place_.direction, place_.number};
    constexpr bool grouping = requires(Communicator & c) { c.begin_group(), c.end_group(); };
    if constexpr (grouping) comm_.begin_group();
    for (std::size_t k = 0; k < size(); ++k) {
      received_[k] = nullptr;
      if (k == me_ || count(k) == 0) continue;
      if constexpr (has_bytes)
        if (element* const there = into(k)) {
          comm_.post_receive_bytes(from_[k], s, std::as_writable_bytes(std::span(there, count(k))), receives_[k]);
          continue;
        }
      received_[k] = &buffer(count(k));
      comm_.post_receive(from_[k], s, *received_[k], receives_[k]);
    }
    for (std::size_t i = 1; i < size(); ++i) {
      const std::size_t k = (me_ + i) % size();  // not all to the same rank first
      const auto part = send(k);
      sent_[k] = !part.empty();
      if (!sent_[k]) continue;
      if constexpr (has_bytes) {
        comm_.post_send_bytes(to_[k], s, std::as_bytes(part), sends_[k]);
      } else {
        auto& filled = buffer(part.size());
        copy_elements(traits::data(filled), part.data(), part.size());
        comm_.post_send(to_[k], s, filled, sends_[k]);
      }
    }
    if constexpr (grouping) comm_.end_group();
  }
  template <class Send, class Count, class Take>
  collective_outcome finish(double deadline_s, Send send, Count count, Take take) {
    for (std::size_t k = 0; k < size(); ++k) {
      if (count(k) == 0) continue;
      if (k == me_) {
        take(k, send(k).data());
        continue;
      }
      const auto result = wait_for(receives_[k], deadline_s);
      if (result != wait_result::progress) return {.result = result, .waits_for = place_.ranks[k], .problem = {}};
      if (received_[k]) take(k, static_cast<const element*>(traits::data(*received_[k])));
    }
    for (std::size_t k = 0; k < size(); ++k)
      if (k != me_ && sent_[k]) {
        const auto result = wait_for(sends_[k], deadline_s);
        if (result != wait_result::progress) return {.result = result, .waits_for = place_.ranks[k], .problem = {}};
      }
    for (auto& b : buffers_) b.used = false;
    return {};
  }

  wait_result wait_for(operation& op, double deadline_s) {
    if (comm_.poll(op)) return wait_result::progress;
    const auto until = deadline_in(deadline_s);
    while (true) {
      const auto result = comm_.wait(until, true);
      if (comm_.poll(op)) return wait_result::progress;
      if (result != wait_result::progress) return result;
    }
  }

  Tensor& buffer(std::size_t n) {
    for (auto& b : buffers_)
      if (!b.used && b.elements == n) {
        b.used = true;
        return b.tensor;
      }
    return buffers_.emplace_back(traits::make(flat_shape<Tensor>(n)), n, true).tensor;
  }
  struct kept_buffer {
    kept_buffer(Tensor t, std::size_t n, bool u) : tensor(std::move(t)), elements(n), used(u) {}
    Tensor tensor;
    std::size_t elements;
    bool used;
  };

  Communicator comm_;
  group_place place_;
  std::size_t me_ = 0;
  std::vector<int> to_, from_;  ///< channels, by place in the group
  std::unique_ptr<operation[]> sends_, receives_;
  std::vector<char> sent_;
  std::vector<Tensor*> received_;    ///< into a buffer, or null
  std::deque<kept_buffer> buffers_;  ///< they stay where they are
  std::vector<element> own_;
  std::vector<std::size_t> counts_;
  std::int64_t calls_ = 0;
};

}  // namespace hetsched::detail
