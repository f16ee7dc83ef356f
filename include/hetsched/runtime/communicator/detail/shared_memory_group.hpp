// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/group/axis_group_test.cpp.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/collective.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// Where the threads of a group meet, and what each shows the others of its call.
class group_meeting {
 public:
  struct call {
    collective_kind kind{};
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t elements = 0;  ///< or the root of a broadcast
    std::span<const std::size_t> counts = {}, receive_counts = {};
  };

  /// `aborted`: the communicator's; outlives this.
  group_meeting(group_place place, const std::atomic<bool>& aborted);

  [[nodiscard]] const group_place& place() const { return place_; }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  /// What member k shows of the call that `me` is in.
  [[nodiscard]] const call& of(std::size_t me, std::size_t k) const { return members_[k].shown[turn_of(me)]; }

  /// What a member keeps for the others, from its beginning on; null: it has not begun.
  void keep(std::size_t me, std::shared_ptr<void> what);
  [[nodiscard]] std::shared_ptr<void> kept_by(std::size_t k) const;

  /// Waits until all have come here equally often.
  collective_outcome meet(std::size_t me, double deadline_s) {
    arrive(me);
    return await(me, deadline_s);
  }
  /// The two halves of meet(): this one has come, and waits for the others.
  void arrive(std::size_t me);
  collective_outcome await(std::size_t me, double deadline_s);
  void wake();

  /// Between the two, this rank reads and writes what others have shown. Returns whether it may.
  [[nodiscard]] bool begin_access(std::size_t me);
  void end_access(std::size_t me) { members_[me].busy.store(false); }

  /// Shows a call and, once all have done so and the calls fit each other, does its part, which may read and write what others
  /// have shown; ends when all have done theirs.
  template <class Work>
  collective_outcome together(std::size_t me, const call& c, double deadline_s, Work&& work) {
    begin(me, c);
    if (auto outcome = end(me, c, deadline_s, work); outcome.result != wait_result::progress) return outcome;
    return meet(me, deadline_s);
  }
  /// Shows a call to those that come through this meeting. The next one's takes another place, as they may still look at this
  /// one; that after it finds them through with it.
  void begin(std::size_t me, const call& c) {
    members_[me].shown[1 - turn_of(me)] = c;
    arrive(me);
  }
  /// together() but for its second meeting: others may still do their part, until the end of the next call.
  template <class Work>
  collective_outcome end(std::size_t me, const call& c, double deadline_s, Work&& work) {
    if (auto outcome = await(me, deadline_s); outcome.result != wait_result::progress) return outcome;
    if (!begin_access(me)) return {.result = wait_result::aborted, .waits_for = -1, .problem = {}};
    auto problem = difference(me, c);
    try {
      if (problem.empty()) work();
    } catch (...) {
      end_access(me);
      throw;
    }
    end_access(me);
    if (!problem.empty()) return {.result = wait_result::aborted, .waits_for = -1, .problem = std::move(problem)};
    return {};
  }

  /// Returns when nobody reads or writes any more.
  /// Requires: the communicator is aborted.
  void settle() const;

 private:
  /// Why the others' calls do not fit this one.
  [[nodiscard]] std::string difference(std::size_t me, const call& mine) const;
  [[nodiscard]] std::size_t turn_of(std::size_t me) const { return members_[me].times.load(std::memory_order_relaxed) % 2; }

  static constexpr int spins = 64;
  struct alignas(64) member {
    std::atomic<std::uint64_t> times{0};
    std::atomic<bool> busy{false};
    call shown[2];  ///< by turns
    std::shared_ptr<void> kept;
  };
  group_place place_;
  const std::atomic<bool>& aborted_;
  std::vector<member> members_;
  alignas(64) std::atomic<std::uint64_t> arrived_{0};
  std::atomic<int> sleepers_{0};
  mutable std::mutex guard_;
  std::condition_variable changed_;
};

/// Collectives of threads that read and write each other's memory. Two meetings each: all have come with their spans, and all
/// have done their part; a gather in halves has the first alone. Nothing is allocated or copied twice.
template <class Element>
class shared_memory_group {
  using counts_type = std::span<const std::size_t>;

 public:
  /// `meeting`: the same for all ranks of the group.
  shared_memory_group(std::shared_ptr<group_meeting> meeting, int rank) : meeting_(std::move(meeting)) {
    const auto& ranks = meeting_->place().ranks;
    me_ = as_size(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }

  /// Each rank sums its part and writes it everywhere.
  collective_outcome all_reduce(std::span<Element> values, double deadline_s) {
    const std::size_t n = values.size();
    return together({collective_kind::all_reduce, values.data(), values.data(), n, {}, {}}, deadline_s, [&] {
      const std::size_t first = even_part(n, me_, size()), last = even_part(n, me_ + 1, size());
      if (size() == 2) return sum_in_both(out(0) + first, out(1) + first, last - first);
      for (std::size_t i = first; i < last; i += block) {
        const std::size_t count = std::min(block, last - i);
        Element sums[block];
        sum(sums, i, count);
        for (std::size_t k = 0; k < size(); ++k) copy_elements(out(k) + i, static_cast<const Element*>(sums), count);
      }
    });
  }
  collective_outcome all_gather(std::span<const Element> mine, std::span<Element> all, counts_type counts, double deadline_s) {
    begin_all_gather(mine, all, counts);
    if (auto outcome = end_all_gather(mine, all, counts, deadline_s); outcome.result != wait_result::progress) return outcome;
    return meeting_->meet(me_, deadline_s);
  }
  void begin_all_gather(std::span<const Element> mine, std::span<Element>, counts_type counts) {
    meeting_->begin(me_, {collective_kind::all_gather, mine.data(), nullptr, 0, counts, {}});
  }
  collective_outcome end_all_gather(std::span<const Element> mine, std::span<Element> all, counts_type counts,
                                    double deadline_s) {
    return meeting_->end(me_, {collective_kind::all_gather, mine.data(), nullptr, 0, counts, {}}, deadline_s, [&] {
      std::size_t first = 0;
      for (std::size_t k = 0; k < size(); first += counts[k++]) copy_elements(all.data() + first, in(k), counts[k]);
    });
  }
  /// Told from a gather by its number of elements.
  collective_outcome await_gathers(double deadline_s) {
    const group_meeting::call c{collective_kind::all_gather, nullptr, nullptr, 1, {}, {}};
    meeting_->begin(me_, c);
    return meeting_->end(me_, c, deadline_s, [] {});
  }
  collective_outcome reduce_scatter(std::span<const Element> all, std::span<Element> mine, counts_type counts,
                                    double deadline_s) {
    return together({collective_kind::reduce_scatter, all.data(), nullptr, 0, counts, {}}, deadline_s, [&] {
      const std::size_t first = offset_of(counts, me_), n = counts[me_];
      for (std::size_t i = 0; i < n; i += block) {
        const std::size_t count = std::min(block, n - i);
        Element sums[block];
        sum(sums, first + i, count);
        copy_elements(mine.data() + i, static_cast<const Element*>(sums), count);
      }
    });
  }
  collective_outcome broadcast(std::span<Element> values, int root, double deadline_s) {
    const auto r = as_size(root);
    const std::size_t n = values.size();
    return together({collective_kind::broadcast, values.data(), nullptr, r, {&n, 1}, {}}, deadline_s,
                    [&] { copy_elements(values.data(), in(r), n); });
  }
  collective_outcome all_to_all(std::span<const Element> send, counts_type send_counts, std::span<Element> receive,
                                counts_type receive_counts, double deadline_s) {
    return together({collective_kind::all_to_all, send.data(), nullptr, 0, send_counts, receive_counts}, deadline_s, [&] {
      std::size_t first = 0;
      for (std::size_t k = 0; k < size(); first += receive_counts[k++])
        copy_elements(receive.data() + first, in(k) + offset_of(meeting_->of(me_, k).counts, me_), receive_counts[k]);
    });
  }
  void settle() { meeting_->settle(); }

 private:
  static constexpr std::size_t block = 8192 / sizeof(Element) > 0 ? 8192 / sizeof(Element) : 1;

  [[nodiscard]] std::size_t size() const { return meeting_->size(); }
  [[nodiscard]] const Element* in(std::size_t k) const { return static_cast<const Element*>(meeting_->of(me_, k).in); }
  [[nodiscard]] Element* out(std::size_t k) const { return static_cast<Element*>(meeting_->of(me_, k).out); }
  /// A pass less than by way of a block.
  static void sum_in_both(Element* __restrict a, Element* __restrict b, std::size_t n) {
    for (std::size_t left = n / elements_at_once; left > 0; --left) {
      for (std::size_t k = 0; k < elements_at_once; ++k) a[k] = b[k] = sum_of<Element>(a[k], b[k]);
      a += elements_at_once, b += elements_at_once;
    }
    for (std::size_t k = 0; k < n % elements_at_once; ++k) a[k] = b[k] = sum_of<Element>(a[k], b[k]);
  }
  /// Requires: more than one rank.
  void sum(Element* to, std::size_t first, std::size_t n) const {
    add_elements(to, in(0) + first, in(1) + first, n);
    for (std::size_t k = 2; k < size(); ++k) add_elements(to, in(k) + first, n);
  }

  template <class Work>
  collective_outcome together(const group_meeting::call& c, double deadline_s, Work&& work) {
    return meeting_->together(me_, c, deadline_s, work);
  }

  std::shared_ptr<group_meeting> meeting_;
  std::size_t me_ = 0;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/communicator/detail/shared_memory_group.ipp>
#endif
