// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/detail/axis_sizes.hpp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// One rank's end of the ranks along an axis of a group, for layers: collectives of whole tensors in device memory. They are
/// enqueued behind what is on the queue that is given, which goes on behind them; nobody waits. Parts lie one behind the other in
/// the order of the axis; `counts`: their elements, the same on all ranks, which may be none. A default-constructed one is
/// one rank alone. All ranks of the axis make one before set_plan, which connects them, and call the same in the same order:
/// inside a computation of an executor on several devices, or in stage_listener::ended; or between steps, all ranks of the plane
/// in one order. All ranks get the same bits, but NCCL adds in an order of its own, which depends on the number of ranks and
/// elements, the network and its version; so they are those of axis_group, which adds in the order of the ranks, up to rounding
/// only. Throws: input_error for sizes that do not fit, tensors that are not on the device, axes that are not connected, and
/// calls in between, where the order of the other ranks is not known; cuda_error; nccl_error; communication_error where a rank
/// has failed. All but the sizes abort. Ranks that call what does not fit each other end at the deadline.
template <class Tensor, class Queue, class Communicator>
class nccl_axis {
  using traits = tensor_traits<Tensor>;

 public:
  /// Whether parts of one size take one call, and others one for each rank.
  static constexpr bool prefers_even_parts = true;

  nccl_axis() = default;
  /// As axis_group; of the options the name is used, and what is planned.
  /// Throws: input_error for ranks that do not exist or are not different, or if this one is not among them.
  nccl_axis(const Communicator& comm, std::vector<int> ranks, const axis_options& options = {}) {
    rank_ = detail::place_in(ranks, comm);
    size_ = static_cast<int>(ranks.size());
    if (size_ > 1) shared_ = comm.shared_, who_ = shared_->open(std::move(ranks), options);
  }
  /// A place among ranks that NCCL does not all connect.
  nccl_axis(int rank, int size) : rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Whether it has collectives.
  [[nodiscard]] bool connects() const { return size_ == 1 || shared_; }

  /// Registers the memory of a tensor with NCCL, if nccl_options::registers and NCCL can, until the result ends, which is before
  /// the tensor does; behind set_plan, which connects. Throws: nccl_error.
  [[nodiscard]] std::shared_ptr<const void> keep(Tensor& t) const {
    const auto number = shared_ ? shared_->keep_memory(who_, traits::buffer(t)) : 0;
    if (number == 0) return {};
    return {static_cast<const void*>(nullptr), [of = shared_, number](const void*) { of->let_memory_go(number); }};
  }

  /// values: the sum over all ranks, on all of them.
  void all_reduce(Tensor& values, const Queue& q) const {
    if (size_ > 1)
      call("ncclAllReduce", values, values, q, [n = elements(values)](const auto& nccl, auto* at, auto* to, auto with, auto s) {
        return nccl.all_reduce(at, to, n, type, with, s);
      });
  }
  /// all: the tensors of all ranks, one behind the other; of one size.
  void all_gather(const Tensor& mine, Tensor& all, const Queue& q) const {
    sizes().expect_parts(mine, all);
    if (size_ == 1) return traits::assign(all, mine, q);
    call("ncclAllGather", mine, all, q, [n = elements(mine)](const auto& nccl, auto* from, auto* to, auto with, auto s) {
      return nccl.all_gather(from, to, n, type, with, s);
    });
  }
  /// Parts of these sizes.
  void all_gather(const Tensor& mine, Tensor& all, std::span<const std::size_t> counts, const Queue& q) const {
    sizes().expect_parts(mine, all, counts);
    if (are_even(counts)) return all_gather(mine, all, q);
    call("ncclBroadcast", mine, all, q, [&](const auto& nccl, auto* from, auto* to, auto with, auto s) {
      auto* cursor = static_cast<std::byte*>(to);
      return grouped(nccl, size_, 1, [&](int k) {
        const auto n = at(counts, k);
        auto* const here = std::exchange(cursor, cursor + n * sizeof(typename traits::element));
        return n == 0 ? 0 : nccl.broadcast(k == rank_ ? from : here, here, n, type, k, with, s);
      });
    });
  }
  /// mine: part rank() of the sum over all ranks of `all`, in size() parts of one size.
  void reduce_scatter(const Tensor& all, Tensor& mine, const Queue& q) const {
    sizes().expect_parts(mine, all);
    if (size_ == 1) return traits::assign(mine, all, q);
    call("ncclReduceScatter", all, mine, q, [n = elements(mine)](const auto& nccl, auto* from, auto* to, auto with, auto s) {
      return nccl.reduce_scatter(from, to, n, type, with, s);
    });
  }
  /// Parts of these sizes.
  void reduce_scatter(const Tensor& all, Tensor& mine, std::span<const std::size_t> counts, const Queue& q) const {
    sizes().expect_parts(mine, all, counts);
    if (are_even(counts)) return reduce_scatter(all, mine, q);
    call("ncclReduce", all, mine, q, [&](const auto& nccl, auto* from, auto* to, auto with, auto s) {
      const auto* cursor = static_cast<const std::byte*>(from);
      return grouped(nccl, size_, 1, [&](int k) {
        const auto n = at(counts, k);
        const auto* const here = std::exchange(cursor, cursor + n * sizeof(typename traits::element));
        return n == 0 ? 0 : nccl.reduce(here, k == rank_ ? to : nullptr, n, type, k, with, s);
      });
    });
  }
  /// send: a part for each rank; receive: the parts that they have for this one. send_counts[k] is what rank k receives from
  /// here, receive_counts[k] what it sends here.
  void all_to_all(const Tensor& send, std::span<const std::size_t> send_counts, Tensor& receive,
                  std::span<const std::size_t> receive_counts, const Queue& q) const {
    sizes().expect_sum(send, send_counts);
    sizes().expect_sum(receive, receive_counts);
    if (size_ == 1) return traits::assign(receive, send, q);
    const auto part = [](auto* first, std::span<const std::size_t> counts, int k) {
      const auto before = std::accumulate(counts.begin(), counts.begin() + k, std::size_t{0});
      return first + before * sizeof(typename traits::element);
    };
    call("ncclSend", send, receive, q, [&](const auto& nccl, auto* from, auto* to, auto with, auto s) {
      // In turn d all send d ranks on, so both ends of a transfer are in the same turn, and in the same group.
      return grouped(nccl, size_, 2, [&](int d) {
        const int next = (rank_ + d) % size_, last = (rank_ - d + size_) % size_;
        const auto bytes = [](std::span<const std::size_t> counts, int k) {
          return at(counts, k) * sizeof(typename traits::element);
        };
        int code = 0;
        if (const auto n = bytes(send_counts, next); n > 0)
          code = nccl.send(part(static_cast<const std::byte*>(from), send_counts, next), n, next, with, s);
        if (const auto n = bytes(receive_counts, last); n > 0 && (code == 0 || code == detail::nccl_in_progress))
          code = nccl.receive(part(static_cast<std::byte*>(to), receive_counts, last), n, last, with, s);
        return code;
      });
    });
  }
  /// values: those of rank `root` of the axis.
  void broadcast(Tensor& values, int root, const Queue& q) const {
    sizes().expect_root(root);
    if (size_ > 1)
      call("ncclBroadcast", values, values, q,
           [n = elements(values), root](const auto& nccl, auto* at, auto* to, auto with, auto s) {
             return nccl.broadcast(at, to, n, type, root, with, s);
           });
  }

 private:
  static constexpr nccl_type type = nccl_type_of<typename traits::element>;
  static std::size_t elements(const Tensor& t) { return detail::elements_in_buffer(t); }
  static bool are_even(std::span<const std::size_t> counts) {
    return std::all_of(counts.begin(), counts.end(), [&](std::size_t n) { return n == counts.front(); });
  }
  [[nodiscard]] detail::axis_sizes<Tensor> sizes() const { return {rank_, size_}; }
  /// body(k) -> code for k from 0 to n - 1, each with so many operations, in groups that NCCL does not cut.
  template <class Nccl, class Body>
  static int grouped(const Nccl& nccl, int n, int operations, Body&& body) {
    const int most = 256 / operations;
    const auto is_wrong = [](int code) { return code != 0 && code != detail::nccl_in_progress; };
    int code = 0;
    for (int first = 0; first < n; first += most) {
      if (code = nccl.begin_group(); is_wrong(code)) return code;
      for (int k = first; k < std::min(n, first + most) && !is_wrong(code); ++k) code = body(k);
      const int end = nccl.end_group();  // else what aborts would be in this group
      if (is_wrong(code)) return code;
      if (code = end; is_wrong(code)) return code;
    }
    return code;
  }
  template <class Body>
  void call(const char* name, const Tensor& from, Tensor& to, const Queue& q, Body&& body) const {
    if (!shared_) throw input_error(std::string(name) + ": not all ranks of the axis are on GPUs that NCCL connects");
    shared_->call(who_, name, traits::buffer(from), traits::buffer(to), q, body);
  }

  int rank_ = 0, size_ = 1;
  std::shared_ptr<typename Communicator::shared_state> shared_;
  std::size_t who_ = 0;  ///< its group
};

}  // namespace hetsched
