// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched::detail {

/// An action of a schedule and what it has to do with others. Actions are numbered as in action_index.
struct event_step {
  action what;
  int lane = 0;
  int first_need = 0;  ///< position in event_graph::needs
  int origin = -1;     ///< the computation whose result it makes or moves
  int partner = -1;    ///< the receive of a send, the send of a receive
  bool ships = false;  ///< a computation whose result another rank takes without listed transfers
};

/// Who waits for whom in a schedule, whatever it costs. The schedule must outlive the graph.
struct event_graph {
  const schedule* order = nullptr;
  std::vector<int> lane_first;    ///< lanes + 1: first action of a lane
  std::vector<event_step> steps;  ///< actions + 1; the last one ends the needs
  /// Results that actions take, other than the one that a receive takes from its send: 2n is that of action n on its own rank,
  /// 2n + 1 the same where it is sent to. Those of step n end where those of n + 1 begin.
  std::vector<int> needs;
  /// Directions x stages, or empty: the reduce_gradients that is part of the stage's reduction, -1: none. Of several directions
  /// on one rank, only the last one listed is.
  std::vector<int> reductions;

  [[nodiscard]] int size() const { return lane_first.back(); }
  [[nodiscard]] const event_step& step(int n) const { return steps[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const action& at(int n) const { return step(n).what; }
  [[nodiscard]] const lane& lane_at(int l) const { return order->lanes[static_cast<std::size_t>(l)]; }
  /// Behind the last action of the event that begins with action n.
  [[nodiscard]] int event_end(int n) const {
    do ++n;
    while (at(n).joined);  // no lane begins with a joined action
    return n;
  }
};

/// The graph of a schedule.
/// Throws: input_error as sound_index.
/// Complexity: O(actions + directions * stages * microbatches).
[[nodiscard]] inline event_graph make_event_graph(const schedule& order) {
  using enum action_kind;
  const action_index index = sound_index(order);
  event_graph g;
  g.order = &order;
  g.lane_first = index.lane_first;
  const auto count = static_cast<std::size_t>(index.size());
  g.steps.reserve(count + 1);
  g.needs.reserve(2 * count);
  for (std::size_t l = 0; l < order.lanes.size(); ++l)
    for (const auto& a : order.lanes[l].actions) g.steps.push_back({.what = a, .lane = static_cast<int>(l)});
  g.steps.emplace_back();

  const auto result_of = [&](const action& a) {
    if (!moves_gradient(a.kind)) return index.find(forward, a.direction, a.stage, a.microbatch);
    const int whole = index.find(backward, a.direction, a.stage, a.microbatch);
    return whole >= 0 ? whole : index.find(backward_input, a.direction, a.stage, a.microbatch);
  };
  int n = -1;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      ++n;
      event_step& step = g.steps[static_cast<std::size_t>(n)];
      step.first_need = static_cast<int>(g.needs.size());
      if (is_compute(a.kind)) step.origin = n;
      if (is_receive(a.kind)) {
        const action send = other_end(a);
        step.partner = index.find(send.kind, send.direction, send.stage, send.microbatch);
        g.steps[static_cast<std::size_t>(step.partner)].partner = n;
        if (const int post = find_post(index, a); post >= 0) g.needs.push_back(2 * post);
        continue;
      }
      if (is_transfer(a.kind)) step.origin = result_of(is_outgoing(a.kind) ? a : other_end(a));
      if (a.kind == wait_send_activation || a.kind == wait_send_gradient) {  // until it is there
        g.needs.push_back(2 * index.find(marked_kind(a.kind), a.direction, a.stage, a.microbatch) + 1);
        continue;
      }
      for_each_need(order, index, a, [&](int need) {
        const bool elsewhere = g.lane_at(g.step(need).lane).rank != l.rank;
        if (elsewhere && is_compute(a.kind)) g.steps[static_cast<std::size_t>(need)].ships = true;
        g.needs.push_back(2 * need + elsewhere);
      });
    }
  g.steps.back().first_need = static_cast<int>(g.needs.size());
  if (index.lists(reduce_gradients)) {
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s < order.stages; ++s) g.reductions.push_back(index.find(reduce_gradients, c, s, 0));
    const auto stages = static_cast<std::size_t>(order.stages);
    for (auto i = g.reductions.size(); i-- > 0;)
      for (std::size_t k = i % stages; k < g.reductions.size(); k += stages)
        if (order.rank_of[k] == order.rank_of[i] && g.reductions[k] > g.reductions[i]) g.reductions[i] = -1;
  }
  return g;
}

}  // namespace hetsched::detail
