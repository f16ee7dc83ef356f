// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/communicator/collective.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/shared_memory_group.hpp>

namespace hetsched::detail {

HETSCHED_INLINE group_meeting::group_meeting(group_place place, const std::atomic<bool>& aborted)
    : place_(std::move(place)), aborted_(aborted), members_(place_.ranks.size()) {}

HETSCHED_INLINE void group_meeting::keep(std::size_t me, std::shared_ptr<void> what) {
  const std::lock_guard lock(guard_);
  members_[me].kept = std::move(what);
}

HETSCHED_INLINE std::shared_ptr<void> group_meeting::kept_by(std::size_t k) const {
  const std::lock_guard lock(guard_);
  return members_[k].kept;
}

HETSCHED_INLINE void group_meeting::arrive(std::size_t me) {
  const std::uint64_t time = members_[me].times.load(std::memory_order_relaxed) + 1;
  members_[me].times.store(time, std::memory_order_relaxed);
  if (arrived_.fetch_add(1) + 1 == time * size() && sleepers_.load() > 0) wake();
}

HETSCHED_INLINE collective_outcome group_meeting::await(std::size_t me, double deadline_s) {
  const std::uint64_t time = members_[me].times.load(std::memory_order_relaxed), all = time * size();
  for (int i = 0; i < spins && arrived_.load(std::memory_order_acquire) < all && !aborted_; ++i) std::this_thread::yield();
  if (arrived_.load() < all && !aborted_) {
    std::unique_lock lock(guard_);
    ++sleepers_;
    changed_.wait_until(lock, deadline_in(deadline_s), [&] { return arrived_.load() >= all || aborted_; });
    --sleepers_;
  }
  if (arrived_.load() >= all && !aborted_) return {};
  collective_outcome outcome{.result = aborted_ ? wait_result::aborted : wait_result::deadline, .waits_for = -1, .problem = {}};
  for (std::size_t k = size(); k-- > 0;)
    if (members_[k].times.load(std::memory_order_relaxed) < time) outcome.waits_for = place_.ranks[k];
  return outcome;
}

HETSCHED_INLINE void group_meeting::wake() {
  const std::lock_guard lock(guard_);
  changed_.notify_all();
}

HETSCHED_INLINE bool group_meeting::begin_access(std::size_t me) {
  members_[me].busy.store(true);
  if (!aborted_.load()) return true;
  members_[me].busy.store(false);
  return false;
}

HETSCHED_INLINE void group_meeting::settle() const {
  for (const auto& m : members_)
    while (m.busy.load()) std::this_thread::yield();
}

HETSCHED_INLINE std::string group_meeting::difference(std::size_t me, const call& mine) const {
  for (std::size_t k = 0; k < size(); ++k) {
    const auto& other = of(me, k);
    const auto says = [&](const char* what) {
      return std::string("rank ") + std::to_string(place_.ranks[k]) + " calls " + collective_name(other.kind) + what;
    };
    if (other.kind != mine.kind) return says(" instead");
    if (other.elements != mine.elements)
      return says(mine.kind == collective_kind::broadcast ? " with another root" : " with another number of elements");
    if (mine.kind == collective_kind::all_to_all) {
      if (other.counts[me] != mine.receive_counts[k] || other.receive_counts[me] != mine.counts[k])
        return says(" with counts that do not fit");
    } else if (!std::equal(other.counts.begin(), other.counts.end(), mine.counts.begin(), mine.counts.end())) {
      return says(" with other counts");
    }
  }
  return {};
}

}  // namespace hetsched::detail
