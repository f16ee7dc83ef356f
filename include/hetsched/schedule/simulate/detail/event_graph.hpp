// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>

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
  [[nodiscard]] const event_step& step(int n) const { return hetsched::at(steps, n); }
  [[nodiscard]] const action& at(int n) const { return step(n).what; }
  [[nodiscard]] const lane& lane_at(int l) const { return hetsched::at(order->lanes, l); }
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
[[nodiscard]] event_graph make_event_graph(const schedule& order);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/detail/event_graph.ipp>
#endif
