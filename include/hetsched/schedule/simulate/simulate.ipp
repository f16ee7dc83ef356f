// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched::detail {

/// The log as a timeline: sorted by time within each rank's work and transfers.
[[nodiscard]] inline timeline make_timeline(const schedule& order, std::vector<timed_action> log) {
  timeline t{.ranks = order.ranks, .microbatches = order.microbatches, .actions = std::move(log)};
  const auto part = [](const timed_action& a) { return 2 * a.rank + is_transfer(a.what.kind); };
  const auto earlier = [](const timed_action& a, const timed_action& b) { return a.start_s < b.start_s; };
  for (auto first = t.actions.begin(), last = first; first != t.actions.end(); first = last) {
    bool sorted = true;
    while (++last != t.actions.end() && part(*last) == part(*first)) sorted = sorted && !earlier(*last, last[-1]);
    if (!sorted) std::stable_sort(first, last, earlier);
  }
  return t;
}

/// Peaks of memory and of pairs in flight, from the order of the compute lanes alone.
inline void measure_memory(const event_graph& g, const workload& w, simulation& result) {
  const schedule& order = *g.order;
  const auto slot = [&](const action& a) {
    return (as_size(a.direction) * as_size(order.stages) + as_size(a.stage)) * as_size(order.microbatches) +
           as_size(a.microbatch);
  };
  std::vector<char> recomputed(as_size(order.directions) * as_size(order.stages) * as_size(order.microbatches));
  for (int r = 0; r < order.ranks; ++r)
    for (const auto& a : g.lane_at(r).actions)
      if (a.kind == action_kind::recompute) recomputed[slot(a)] = 1;
  for (int r = 0; r < order.ranks; ++r) {
    const auto& actions = g.lane_at(r).actions;
    double held = 0, most = 0;
    int in_flight = 0, most_in_flight = 0;
    for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
      double given_back = 0;
      int ended = 0;
      end = first;
      do {
        const action& a = actions[end];
        if (!is_compute(a.kind)) continue;
        const auto change = change_of(w.at(a.direction, a.stage), a.kind, recomputed[slot(a)] != 0);
        held += change.taken;
        in_flight += change.begun;
        given_back += change.given_back;
        ended += change.ended;
      } while (++end < actions.size() && actions[end].joined);
      most = std::max(most, held);
      most_in_flight = std::max(most_in_flight, in_flight);
      held -= given_back;
      in_flight -= ended;
    }
    result.peak_memory_bytes.push_back(most);
    result.peak_in_flight.push_back(most_in_flight);
  }
}

/// simulation::period_s. Work is counted from a point within an action, so that the time does not jump over idle time there;
/// so every microbatch of a regular order brings the rank to the same point of its order.
[[nodiscard]] inline double measured_period(const event_graph& g, const event_run& run) {
  const schedule& order = *g.order;
  const auto& busy = run.rank_busy_s;
  const auto r = as_size(std::max_element(busy.begin(), busy.end()) - busy.begin());
  const int microbatches = order.microbatches;
  if (microbatches == 1) return run.rank_end_s[r] - run.rank_start_s[r];
  struct piece {
    double end_s, work_s;
  };
  std::vector<piece> pieces;
  double all_s = 0, shortest_s = run.makespan_s;
  for (int n = g.lane_first[r], end = n; n < g.lane_first[r + 1]; n = end) {
    end = g.event_end(n);
    if (!is_compute(g.at(n).kind)) continue;
    const double work_s = run.event_work_s(n, end);
    if (work_s <= 0) continue;
    pieces.push_back({at(run.results, n).at_s[0], work_s});
    all_s += work_s;
    shortest_s = std::min(shortest_s, work_s);
  }
  const int middle = microbatches / 2, before = (microbatches - middle) / 2;
  const auto time_of = [&](int count) {
    double left_s = all_s / microbatches * count + 0.382 * shortest_s;
    for (const auto& p : pieces) {
      if (left_s <= p.work_s) return p.end_s - (p.work_s - left_s);
      left_s -= p.work_s;
    }
    return pieces.empty() ? 0.0 : pieces.back().end_s;
  };
  return (time_of(before + middle) - time_of(before)) / middle;
}

/// What is known of a run, but for its timeline.
[[nodiscard]] inline simulation summary(const event_graph& g, const workload& w, const event_run& run) {
  simulation result;
  result.makespan_s = run.makespan_s;
  result.rank_start_s = run.rank_start_s;
  result.rank_end_s = run.rank_end_s;
  result.rank_busy_s = run.rank_busy_s;
  result.wire_busy_s = run.wire_busy_s;
  double busy_s = 0;
  for (const double b : run.rank_busy_s) busy_s += b;
  if (run.makespan_s > 0) result.bubble_ratio = std::max(0.0, 1 - busy_s / (g.order->ranks * run.makespan_s));
  if (run.transfer_s > 0) result.overlap_ratio = std::max(0.0, 1 - run.exposed_s / run.transfer_s);
  result.period_s = measured_period(g, run);
  measure_memory(g, w, result);
  return result;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE simulation simulate(const workload& w, const schedule& order, const simulate_options& options) {
  const auto graph = detail::make_event_graph(order);
  detail::event_run run(graph, w, options.semantics, options.timeline);
  auto result = detail::summary(graph, w, run);
  if (options.timeline) result.timeline = detail::make_timeline(order, std::move(run.log));
  return result;
}

}  // namespace hetsched
