// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/posting.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

HETSCHED_INLINE schedule runnable(const schedule& given, send_semantics semantics) {
  const schedule order = without_marks(given);  // executors post early and wait for what they need
  check_options how;
  how.semantics = {send_semantics::buffered};
  const auto require = [&](const schedule& s) {
    if (const auto findings = check(s, how); !findings.empty()) throw input_error("the schedule cannot run: " + findings.front());
  };
  require(order);
  if (order.directions > 2) throw input_error("schedules of more than two directions cannot be run");
  bool transfers = false, reductions = false;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      transfers = transfers || is_transfer(a.kind);
      reductions = reductions || a.kind == action_kind::reduce_gradients;
    }
  schedule result = order;
  if (!transfers) {
    // Transfers are added to computations; the lanes of collectives stay as they are.
    const auto middle = std::stable_partition(result.lanes.begin(), result.lanes.end(),
                                              [](const lane& l) { return l.stream == stream::compute; });
    const std::vector<lane> others(middle, result.lanes.end());
    result.lanes.erase(middle, result.lanes.end());
    result = split_streams(add_transfers(result));
    result.lanes.insert(result.lanes.end(), others.begin(), others.end());
  }
  if (order.directions == 2 && !reductions && !is_forward_only(order))
    for (int s = 0; s < order.stages; ++s)
      for (int c = 0; c < 2; ++c) {
        const int rank = order.rank(c, s);
        auto at = std::find_if(result.lanes.begin(), result.lanes.end(),
                               [&](const lane& l) { return l.rank == rank && l.stream == stream::collective; });
        if (at == result.lanes.end())
          at = result.lanes.insert(at, {.rank = rank, .stream = stream::collective, .peer = -1, .actions = {}});
        at->actions.push_back({.kind = action_kind::reduce_gradients,
                               .direction = static_cast<std::int16_t>(c),
                               .stage = s,
                               .microbatch = no_microbatch});
      }
  if (semantics == send_semantics::rendezvous) {
    how.semantics = {send_semantics::rendezvous};
    require(result);
  }
  return result;
}

HETSCHED_INLINE indexed_schedule::indexed_schedule(schedule order)
    : order_(std::move(order)), index_(order_), forward_only_(is_forward_only(order_)) {
  first_lane_.assign(as_size(order_.ranks) + 1, 0);
  for (const auto& l : order_.lanes) ++first_lane_[as_size(l.rank) + 1];
  for (std::size_t r = 0; r + 1 < first_lane_.size(); ++r) first_lane_[r + 1] += first_lane_[r];
  auto next = first_lane_;
  lanes_.resize(order_.lanes.size());
  for (std::size_t l = 0; l < order_.lanes.size(); ++l) lanes_[next[as_size(order_.lanes[l].rank)]++] = l;
}

HETSCHED_INLINE std::span<const std::size_t> indexed_schedule::lanes_of(int rank) const {
  const auto r = as_size(rank);
  return std::span(lanes_).subspan(first_lane_[r], first_lane_[r + 1] - first_lane_[r]);
}

HETSCHED_INLINE std::shared_ptr<const common_schedule> find_common(shared_values* values, const schedule& given,
                                                                   send_semantics semantics) {
  return find_or_make<common_schedule>(
      values, [&](const common_schedule& one) { return one.semantics == semantics && one.given == given; },
      [&] {
        return std::shared_ptr<const common_schedule>(
            new common_schedule{given, semantics, indexed_schedule(runnable(given, semantics))});
      });
}

}  // namespace hetsched::detail
