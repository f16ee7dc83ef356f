// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/channels.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/text.hpp>
#include <hetsched/schedule/workload.hpp>

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
  /// Replicas x stages, or empty: the reduce_gradients that is part of the stage's reduction, -1: none. Of several replicas
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

/// Kinds that their rank does by itself: they have no business with other ranks or with wires.
[[nodiscard]] constexpr bool is_own_work(action_kind k) { return !is_transfer(k) && k != action_kind::reduce_gradients; }

/// The kinds that are one leg of a transfer.
[[nodiscard]] constexpr bool is_staged(action_kind k) {
  return k >= action_kind::d2h_activation && k <= action_kind::h2d_gradient;
}

/// Where the leg behind this one is listed, -1: nowhere; behind the last one, the leg itself.
[[nodiscard]] inline int next_leg(const action_index& index, const action& a) {
  using enum action_kind;
  const auto find = [&](action_kind kind, int stage) { return index.find(kind, a.replica, stage, a.microbatch); };
  switch (a.kind) {
    case d2h_activation:
      return find(network_activation, a.stage);
    case d2h_gradient:
      return find(network_gradient, a.stage);
    case network_activation:
      return find(h2d_activation, a.stage + 1);
    case network_gradient:
      return find(h2d_gradient, a.stage - 1);
    default:
      return find(a.kind, a.stage);
  }
}

/// Throws input_error for an action that does not belong where it is listed.
inline void validate_place(const schedule& order, const lane& l, const action& a, bool first_of_lane) {
  const auto refuse = [&](const std::string& why) {
    throw input_error(to_text(a) + " of rank " + std::to_string(l.rank) + " " + why);
  };
  if (order.rank(a.replica, a.stage) != l.rank) refuse("belongs to rank " + std::to_string(order.rank(a.replica, a.stage)));
  if (is_compute(a.kind) && l.stream != stream::compute) refuse("is a computation, but not in the compute lane");
  if (is_transfer(a.kind) && (peer_stage(a) < 0 || peer_stage(a) >= order.stages)) refuse("has no stage at its other end");
  if (a.joined && first_of_lane) refuse("is joined with nothing");
}

/// Throws input_error unless every microbatch runs through one replica, every forward has a backward, whole or split.
inline void validate_complete(const schedule& order, const action_index& index) {
  using enum action_kind;
  const auto lists = [&](action_kind kind, const action& a) { return index.find(kind, a.replica, a.stage, a.microbatch) >= 0; };
  const auto refuse = [](const action& a, const char* why) { throw input_error(to_text(a) + why); };
  for (int m = 0; m < order.microbatches; ++m) {
    int paths = 0;
    for (int c = 0; c < order.replicas; ++c) paths += index.find(forward, c, 0, m) >= 0;
    if (paths != 1)
      throw input_error("microbatch " + std::to_string(m) + " runs through " + std::to_string(paths) + " replicas, not one");
  }
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      if (a.kind != forward) continue;
      if (lists(backward, a) == lists(backward_input, a)) refuse(a, " needs one backward, whole or split");
      if (lists(backward_weight, a) != lists(backward_input, a)) refuse(a, ": its split backward is not complete");
    }
}

/// The graph of a schedule. Throws input_error for one that is not complete, lists an action twice or where it does not belong,
/// or joins what a rank does by itself with what it does with others. O(actions + stages * microbatches).
[[nodiscard]] inline event_graph make_event_graph(const schedule& order) {
  using enum action_kind;
  validate_shape(order);
  const action_index index(order);
  validate_complete(order, index);
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
    if (!moves_gradient(a.kind)) return index.find(forward, a.replica, a.stage, a.microbatch);
    const int whole = index.find(backward, a.replica, a.stage, a.microbatch);
    return whole >= 0 ? whole : index.find(backward_input, a.replica, a.stage, a.microbatch);
  };
  int n = 0;
  for (const auto& l : order.lanes) {
    for (std::size_t k = 0; k < l.actions.size(); ++k, ++n) {
      const action& a = l.actions[k];
      validate_place(order, l, a, k == 0);
      if (a.joined && is_own_work(a.kind) != is_own_work(l.actions[k - 1].kind))
        throw input_error(to_text(a) + " of rank " + std::to_string(l.rank) + " cannot be one event with " +
                          to_text(l.actions[k - 1]));
      const bool once = !is_parameter(a.kind) || a.kind == reduce_gradients;
      if (once && index.find(a.kind, a.replica, a.stage, is_parameter(a.kind) ? 0 : a.microbatch) != n)
        throw input_error("the schedule lists " + to_text(a) + " more than once");

      event_step& step = g.steps[static_cast<std::size_t>(n)];
      step.first_need = static_cast<int>(g.needs.size());
      if (is_compute(a.kind)) step.origin = n;
      if (is_receive(a.kind)) {
        const action send = other_end(a);
        step.partner = index.find(send.kind, send.replica, send.stage, send.microbatch);
        if (step.partner < 0) throw input_error(to_text(a) + " is never sent");
        g.steps[static_cast<std::size_t>(step.partner)].partner = n;
        continue;
      }
      if (is_staged(a.kind) && next_leg(index, a) < 0) throw input_error(to_text(a) + " goes nowhere");
      if (is_transfer(a.kind)) step.origin = result_of(is_outgoing(a.kind) ? a : other_end(a));
      for_each_need(order, index, a, [&](int need) {
        if (need < 0) throw input_error(to_text(a) + " needs an action that the schedule does not list");
        const bool elsewhere = g.lane_at(g.step(need).lane).rank != l.rank;
        if (elsewhere && is_compute(a.kind)) g.steps[static_cast<std::size_t>(need)].ships = true;
        g.needs.push_back(2 * need + elsewhere);
      });
    }
  }
  for (const auto& step : g.steps)
    if (is_send(step.what.kind) && step.partner < 0) throw input_error(to_text(step.what) + " is never received");
  g.steps.back().first_need = static_cast<int>(g.needs.size());
  if (index.lists(reduce_gradients)) {
    for (int c = 0; c < order.replicas; ++c)
      for (int s = 0; s < order.stages; ++s) g.reductions.push_back(index.find(reduce_gradients, c, s, 0));
    const auto stages = static_cast<std::size_t>(order.stages);
    for (std::size_t i = 0; i < g.reductions.size(); ++i)
      if ((g.reductions[i] < 0) != (g.reductions[i % stages] < 0))
        throw input_error("not every replica of stage " + std::to_string(i % stages) + " lists its reduction of gradients");
    for (auto i = g.reductions.size(); i-- > 0;)
      for (std::size_t k = i % stages; k < g.reductions.size(); k += stages)
        if (order.rank_of[k] == order.rank_of[i] && g.reductions[k] > g.reductions[i]) g.reductions[i] = -1;
  }
  return g;
}

}  // namespace hetsched::detail
