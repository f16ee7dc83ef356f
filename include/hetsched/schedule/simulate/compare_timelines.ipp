// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>

namespace hetsched::detail {

/// The boundary that a transfer crosses, by the stage before it.
[[nodiscard]] constexpr int boundary_of(const action& a) { return std::min(a.stage, peer_stage(a)); }

HETSCHED_INLINE std::vector<timeline_transfer> transfers_of(const timeline& t) {
  std::vector<timeline_transfer> all;
  for (const auto& a : t.actions)
    if (is_transfer(a.what.kind) && !is_receive(a.what.kind))
      all.push_back(
          {{moves_gradient(a.what.kind), a.what.direction, boundary_of(a.what), a.what.microbatch}, a.peer, a.start_s, a.end_s});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  std::size_t count = 0;
  for (const auto& one : all) {
    if (count == 0 || all[count - 1].key != one.key) {
      all[count++] = one;
      continue;
    }
    all[count - 1].sent_s = std::min(all[count - 1].sent_s, one.sent_s);
    all[count - 1].came_s = std::max(all[count - 1].came_s, one.came_s);
  }
  all.resize(count);
  return all;
}

/// The work of one rank, fused computations as one.
struct timeline_event {
  double start_s = 0, end_s = 0;
};

/// As simulation::period_s, for one rank: work is counted from a point within an event, so that the time does not jump over
/// idle time there. `shortest_s`: at least the shortest event that takes time.
[[nodiscard]] inline double middle_period(const std::vector<timeline_event>& events, int microbatches, double shortest_s) {
  double all_s = 0;
  for (const auto& e : events) {
    all_s += e.end_s - e.start_s;
    if (e.end_s > e.start_s) shortest_s = std::min(shortest_s, e.end_s - e.start_s);
  }
  const int middle = microbatches / 2, before = (microbatches - middle) / 2;
  const auto time_of = [&](int count) {
    double left_s = all_s / microbatches * count + 0.382 * shortest_s;
    for (const auto& e : events) {
      const double work_s = e.end_s - e.start_s;
      if (work_s > 0 && left_s <= work_s) return e.end_s - (work_s - left_s);
      left_s -= work_s;
    }
    return events.empty() ? 0.0 : events.back().end_s;
  };
  return (time_of(before + middle) - time_of(before)) / middle;
}

/// When a rank began and ended, and what it computed.
struct rank_work {
  double start_s = infinity, end_s = -infinity;
  std::vector<timeline_event> computed = {};
};

/// How long a rank stood idle, since its last computation, for the tensor of an action that starts at `start_s`: at most since
/// that set out.
[[nodiscard]] inline double exposed_s(const std::vector<timeline_transfer>& transfers, const action& a, double start_s,
                                      double before_s) {
  if (!makes_tensor(a.kind)) return 0;
  const bool gradient = makes_gradient(a.kind);
  const std::tuple key{gradient, static_cast<int>(a.direction), gradient ? a.stage : a.stage - 1, a.microbatch};
  const auto need =
      std::lower_bound(transfers.begin(), transfers.end(), key, [](const auto& one, const auto& k) { return one.key < k; });
  if (need == transfers.end() || need->key != key) return 0;
  return std::max(0.0, std::min(need->came_s, start_s) - std::max(before_s, need->sent_s));
}

/// Adds up the work of one rank, in the order of its starts.
[[nodiscard]] inline rank_work add_work(std::span<const timed_action* const> work,
                                        const std::vector<timeline_transfer>& transfers, rank_figures& into) {
  rank_work all;
  double before_s = -infinity;  // the end of the computation before
  for (std::size_t i = 0; i < work.size();) {
    std::size_t end = i;
    timeline_event event{work[i]->start_s, work[i]->end_s};
    do event.end_s = std::max(event.end_s, work[end]->end_s);
    while (++end < work.size() && work[end]->what.joined);
    all.start_s = std::min(all.start_s, event.start_s);
    all.end_s = std::max(all.end_s, event.end_s);
    const auto kind = work[i]->what.kind;
    if (is_compute(kind) || kind == action_kind::optimizer) {
      for (; i < end; ++i) into.exposed_s += exposed_s(transfers, work[i]->what, event.start_s, before_s);
      into.busy_s += std::max(0.0, event.end_s - std::max(event.start_s, before_s));
      before_s = std::max(before_s, event.end_s);
      if (is_compute(kind)) all.computed.push_back(event);
    }
    i = end;
  }
  into.span_s = all.end_s - all.start_s;
  return all;
}

/// Fills in what takes the makespan, and what all ranks together say.
inline void add_ratios(timeline_figures& result, const std::vector<rank_work>& worked, int microbatches) {
  double busy_s = 0, received_s = 0, exposed_s = 0;
  std::size_t busiest = 0;
  for (std::size_t r = 0; r < worked.size(); ++r) {
    auto& one = result.ranks[r];
    one.period_s = microbatches == 1 ? one.span_s : middle_period(worked[r].computed, microbatches, result.makespan_s);
    if (result.makespan_s > 0) one.bubble_ratio = std::max(0.0, 1 - one.busy_s / result.makespan_s);
    if (one.received_s > 0) one.overlap_ratio = std::max(0.0, 1 - one.exposed_s / one.received_s);
    busy_s += one.busy_s;
    received_s += one.received_s;
    exposed_s += one.exposed_s;
    if (one.busy_s > result.ranks[busiest].busy_s) busiest = r;
  }
  result.period_s = result.ranks[busiest].period_s;
  const auto ranks = static_cast<double>(worked.size());
  if (result.makespan_s > 0) result.bubble_ratio = std::max(0.0, 1 - busy_s / (ranks * result.makespan_s));
  if (received_s > 0) result.overlap_ratio = std::max(0.0, 1 - exposed_s / received_s);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE timeline_figures figures(const timeline& t) {
  if (t.ranks < 1 || t.microbatches < 1) throw input_error("a timeline needs at least one rank and microbatch");
  detail::validate(t);
  const auto ranks = as_size(t.ranks);
  const auto rank_at = [&](int rank) {
    if (rank < 0 || rank >= t.ranks)
      throw input_error("a timeline of " + std::to_string(t.ranks) + " ranks lists rank " + std::to_string(rank));
    return as_size(rank);
  };
  timeline_figures result;
  result.ranks.resize(ranks);
  const auto transfers = detail::transfers_of(t);
  for (const auto& one : transfers) result.ranks[rank_at(one.to)].received_s += one.came_s - one.sent_s;

  std::vector<const timed_action*> work;
  for (const auto& a : t.actions) {
    rank_at(a.rank);
    if (!is_transfer(a.what.kind)) work.push_back(&a);
  }
  std::stable_sort(work.begin(), work.end(), [](const timed_action* a, const timed_action* b) {
    return a->rank != b->rank ? a->rank < b->rank : a->start_s < b->start_s;
  });

  double first_s = infinity, last_s = -infinity;
  std::vector<detail::rank_work> worked(ranks);
  for (std::size_t i = 0; i < work.size();) {
    const auto begin = i;
    const int rank = work[i]->rank;
    while (i < work.size() && work[i]->rank == rank) ++i;
    auto& own = worked[as_size(rank)];
    own = detail::add_work(std::span(work).subspan(begin, i - begin), transfers, result.ranks[as_size(rank)]);
    first_s = std::min(first_s, own.start_s);
    last_s = std::max(last_s, own.end_s);
  }
  if (work.empty()) return result;
  result.makespan_s = last_s - first_s;
  detail::add_ratios(result, worked, t.microbatches);
  return result;
}

HETSCHED_INLINE timeline from_departure(timeline t) {
  detail::validate(t);
  std::vector<timed_action*> transfers;
  for (auto& a : t.actions)
    if (is_transfer(a.what.kind)) transfers.push_back(&a);
  const auto way = [](const timed_action* a) { return std::tuple(a->rank, a->peer, a->what.kind); };
  std::stable_sort(transfers.begin(), transfers.end(), [&](const timed_action* a, const timed_action* b) {
    return way(a) != way(b) ? way(a) < way(b) : a->start_s < b->start_s;
  });
  for (std::size_t i = 1; i < transfers.size(); ++i)
    if (way(transfers[i]) == way(transfers[i - 1]))
      transfers[i]->start_s = std::min(transfers[i]->end_s, std::max(transfers[i]->start_s, transfers[i - 1]->end_s));
  return t;
}

HETSCHED_INLINE timeline_comparison compare_timelines(const timeline& predicted, const timeline& measured) {
  const auto size = [](const timeline& t) {
    return std::to_string(t.ranks) + " ranks and " + std::to_string(t.microbatches) + " microbatches";
  };
  if (predicted.ranks != measured.ranks || predicted.microbatches != measured.microbatches)
    throw input_error("predicted are " + size(predicted) + ", measured are " + size(measured));
  return {.predicted = figures(predicted), .measured = figures(from_departure(measured))};
}

}  // namespace hetsched
