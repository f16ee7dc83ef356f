// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/detail/axis_sizes.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/communicator/collective.hpp>
#include <hetsched/runtime/communicator/detail/shared_memory_group.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// One rank's end of the ranks along an axis of a group, all in this process, on GPUs, on the host or some on each, for layers:
/// collectives of whole tensors, made of copies and of sums by tensor_traits. Threads meet to tell each other where their tensors
/// are, and to enqueue what reads them; the host waits for no GPU, unless its rank computes on the host. What a rank gives may
/// be written again behind the call. Otherwise as nccl_axis: the same calls, one end on each thread, in the same order. A
/// default-constructed one is one rank alone.
/// Determinism: sums have the bits of axis_group's, which adds in the order of the ranks.
/// Complexity: a rank copies what it takes from each of the others; a sum over all, all of their elements.
/// Throws: input_error for sizes that do not fit; cuda_error; communication_error where a rank is late or calls what does not
/// fit, or the communicator is aborted; all but sizes that do not fit abort.
template <class Tensor, class Queue, class Communicator>
class cuda_local_axis {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;
  using buffer = std::remove_cvref_t<decltype(traits::buffer(std::declval<Tensor&>()))>;
  using counts_type = std::span<const std::size_t>;

 public:
  cuda_local_axis() = default;
  /// As axis_group. Throws: input_error for ranks that do not exist or are not different, or if this one is not among them.
  cuda_local_axis(Communicator comm, std::vector<int> ranks, const axis_options& options = {}) {
    rank_ = detail::place_in(ranks, comm);
    size_ = static_cast<int>(ranks.size());
    if (size_ == 1) return;
    const group_place place{.ranks = std::move(ranks), .number = options.number, .direction = options.direction};
    auto meeting = comm.open_meeting(place);
    auto own = std::make_shared<shown>();
    meeting->keep(as_size(rank_), own);
    held_ = std::make_shared<held>(held{std::move(comm), options, std::move(meeting), std::move(own), {}, {}});
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// values: the sum over all ranks, on all of them.
  void all_reduce(Tensor& values, const Queue& q) const {
    const auto n = elements(values);
    if (size_ == 1 || n == 0) return;
    Tensor sum;
    call({.kind = collective_kind::all_reduce, .elements = n}, values, nullptr, q, [&](const auto& bring) {
      sum = detail::make_tensor<Tensor>(detail::shape_of(std::as_const(values)), q);
      add_up(sum, q, [&](Tensor& t, int k) { bring(t, 0, k, 0, n); });
    });
    guarded([&] { detail::assign(values, sum, q); });
  }
  /// all: the tensors of all ranks, one behind the other; of one size.
  void all_gather(const Tensor& mine, Tensor& all, const Queue& q) const { all_gather(mine, all, even(elements(mine)), q); }
  /// Parts of these sizes.
  void all_gather(const Tensor& mine, Tensor& all, counts_type counts, const Queue& q) const {
    sizes().expect_parts(mine, all, counts);
    if (size_ == 1) return detail::assign(all, mine, q);
    call({.kind = collective_kind::all_gather, .counts = counts}, mine, &all, q, [&](const auto& bring) {
      for (int k = 0; k < size_; ++k) bring(all, detail::offset_of(counts, as_size(k)), k, 0, at(counts, k));
    });
  }
  /// mine: part rank() of the sum over all ranks of `all`, in size() parts of one size.
  void reduce_scatter(const Tensor& all, Tensor& mine, const Queue& q) const {
    reduce_scatter(all, mine, even(elements(mine)), q);
  }
  /// Parts of these sizes.
  void reduce_scatter(const Tensor& all, Tensor& mine, counts_type counts, const Queue& q) const {
    sizes().expect_parts(mine, all, counts);
    if (size_ == 1) return detail::assign(mine, all, q);
    const auto first = detail::offset_of(counts, as_size(rank_)), n = at(counts, rank_);
    call({.kind = collective_kind::reduce_scatter, .counts = counts}, all, &mine, q, [&](const auto& bring) {
      if (n > 0) add_up(mine, q, [&](Tensor& t, int k) { bring(t, 0, k, first, n); });
    });
  }
  /// send: a part for each rank; receive: the parts that they have for this one. send_counts[k] is what rank k receives from
  /// here, receive_counts[k] what it sends here.
  void all_to_all(const Tensor& send, counts_type send_counts, Tensor& receive, counts_type receive_counts,
                  const Queue& q) const {
    sizes().expect_sum(send, send_counts);
    sizes().expect_sum(receive, receive_counts);
    if (size_ == 1) return detail::assign(receive, send, q);
    call({.kind = collective_kind::all_to_all, .counts = send_counts, .receive_counts = receive_counts}, send, &receive, q,
         [&](const auto& bring) {
           for (int k = 0; k < size_; ++k)
             bring(receive, detail::offset_of(receive_counts, as_size(k)), k,
                   detail::offset_of(held_->meeting->of(as_size(rank_), as_size(k)).counts, as_size(rank_)),
                   at(receive_counts, k));
         });
  }
  /// values: those of rank `root` of the axis.
  void broadcast(Tensor& values, int root, const Queue& q) const {
    sizes().expect_root(root);
    if (size_ == 1) return;
    const auto n = elements(values);
    const detail::group_meeting::call c{.kind = collective_kind::broadcast, .elements = as_size(root), .counts = {&n, 1}};
    const auto take = [&](const auto& bring) { bring(values, 0, root, 0, n); };
    rank_ == root ? call(c, values, nullptr, q, [](const auto&) {}) : call(c, values, &values, q, take);
  }

 private:
  /// What a rank shows the others of a call.
  struct shown {
    const buffer* from = nullptr;
    typename Queue::moment ready;              ///< what is there
    std::vector<typename Queue::moment> done;  ///< what this rank does with the others', by queue
  };
  struct held {
    Communicator comm;
    axis_options options;
    std::shared_ptr<detail::group_meeting> meeting;
    std::shared_ptr<shown> own;
    std::vector<std::shared_ptr<shown>> all;         ///< of the ranks, in this call, once all have come to it
    std::vector<std::shared_ptr<const Queue>> ways;  ///< of a rank on the host, to each GPU
  };

  static std::size_t elements(const Tensor& t) { return detail::elements_in_buffer(t); }
  [[nodiscard]] detail::axis_sizes<Tensor> sizes() const { return {rank_, size_}; }
  [[nodiscard]] std::vector<std::size_t> even(std::size_t part) const { return std::vector<std::size_t>(as_size(size_), part); }

  /// sum: of what bring(tensor, k) brings of all ranks, in their order.
  template <class Bring>
  void add_up(Tensor& sum, const Queue& q, Bring&& bring) const {
    bring(sum, 0);
    Tensor term = detail::make_tensor<Tensor>(detail::shape_of(std::as_const(sum)), q);
    for (int k = 1; k < size_; ++k) {
      bring(term, k);
      detail::add(sum, term, q);
    }
  }

  /// body(); where it fails, so do all ranks.
  template <class Body>
  void guarded(Body&& body) const {
    try {
      body();
    } catch (const communication_error&) {
      throw;
    } catch (const std::exception& e) {
      held_->comm.abort("rank " + std::to_string(held_->comm.rank()) + ": " + e.what());
      throw;
    }
  }
  /// body(bring), where bring(tensor, i, k, j, n) copies n elements of what rank k gives, from its j-th on, to a tensor's, from
  /// the i-th on. `to`: what body writes that others may know; null: nothing.
  template <class Body>
  void call(const detail::group_meeting::call& c, const Tensor& from, Tensor* to, const Queue& q, Body&& body) const {
    guarded([&] {
      const auto current = q.make_current();
      const auto& source = traits::buffer(from);
      if (to) traits::buffer(*to).begin_write(q);
      source.begin_read(q);
      held_->meeting->keep(as_size(rank_), held_->own);  // another axis of the same ranks may have been made
      held_->all.clear();
      held_->own->from = &source;
      held_->own->ready = q.record();
      const auto end = [&] {
        wait_for_readers(q);
        const auto now = q.record();
        source.end_read(q, now);
        if (to) traits::buffer(*to).end_write(q, now);
      };
      try {
        meet(c, q, body);
      } catch (...) {
        held_->meeting->settle();
        try {
          end();
        } catch (const std::exception&) {
          // The device has failed too, and does nothing any more.
        }
        throw;
      }
      end();
    });
  }
  /// What is enqueued on q from now on begins behind all that others do with what this rank has given.
  void wait_for_readers(const Queue& q) const {
    for (int k = 0; k < size_; ++k) {
      const bool is_known = as_size(k) < held_->all.size();
      const auto other = is_known ? at(held_->all, k) : std::static_pointer_cast<shown>(held_->meeting->kept_by(as_size(k)));
      if (!other || k == rank_) continue;
      for (const auto& m : other->done) q.wait(m);
    }
  }
  template <class Body>
  void meet(const detail::group_meeting::call& c, const Queue& q, Body&& body) const {
    auto& all = held_->all;
    std::exception_ptr failure;
    const auto fail = [&](const std::exception& e) {
      if (!failure) failure = std::current_exception();
      held_->comm.abort("rank " + std::to_string(held_->comm.rank()) + ": " + e.what());
    };
    const auto outcome = held_->meeting->together(as_size(rank_), c, held_->options.deadline_s, [&] {
      try {
        for (int k = 0; k < size_; ++k) all.push_back(std::static_pointer_cast<shown>(held_->meeting->kept_by(as_size(k))));
        for (const auto& other : all)
          if (other != held_->own) q.wait(other->ready);
        body([&](Tensor& to, std::size_t first, int k, std::size_t there, std::size_t n) {
          if (n > 0)
            copy(q, traits::buffer(to), first * sizeof(element), *at(all, k)->from, there * sizeof(element), n * sizeof(element));
        });
      } catch (const std::exception& e) {
        fail(e);
      }
      try {
        auto& done = held_->own->done;  // also of what was enqueued before a failure
        done.assign(1, q.record());
        for (const auto& way : held_->ways) done.push_back(way->record());
      } catch (const std::exception& e) {
        fail(e);
      }
    });
    if (failure) std::rethrow_exception(failure);
    if (outcome.result != wait_result::progress)
      detail::give_up_collective(held_->comm, held_->meeting->place(), held_->options, c.kind, outcome, [] {});
  }
  void copy(const Queue& q, buffer& to, std::size_t first, const buffer& from, std::size_t there, std::size_t bytes) const {
    if (!q.on_host()) return enqueue_copy(q, to, first, from, there, bytes);
    to.host_access(true);
    if (from.device() < 0) {
      from.host_access(false);
      std::memmove(static_cast<std::byte*>(to.data()) + first, static_cast<const std::byte*>(from.data()) + there, bytes);
      return;
    }
    auto& ways = held_->ways;
    auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) { return w->device() == from.device(); });
    if (way == ways.end()) way = ways.insert(way, q.devices().lend_queue(from.device(), held_->options.name + ", to the host"));
    const auto current = (*way)->make_current();
    enqueue_copy(**way, to, first, from, there, bytes);
    (*way)->finish();
  }

  int rank_ = 0, size_ = 1;
  std::shared_ptr<held> held_;
};

}  // namespace hetsched
