// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>

namespace hetsched::detail {

HETSCHED_INLINE event_graph make_event_graph(const schedule& order) {
  using enum action_kind;
  const action_index index = sound_index(order);
  event_graph g;
  g.order = &order;
  g.lane_first = index.lane_first;
  const auto count = as_size(index.size());
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
      event_step& step = at(g.steps, n);
      step.first_need = static_cast<int>(g.needs.size());
      if (is_compute(a.kind)) step.origin = n;
      if (is_receive(a.kind)) {
        const action send = other_end(a);
        step.partner = index.find(send.kind, send.direction, send.stage, send.microbatch);
        at(g.steps, step.partner).partner = n;
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
        if (elsewhere && is_compute(a.kind)) at(g.steps, need).ships = true;
        g.needs.push_back(2 * need + elsewhere);
      });
    }
  g.steps.back().first_need = static_cast<int>(g.needs.size());
  if (index.lists(reduce_gradients)) {
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s < order.stages; ++s) g.reductions.push_back(index.find(reduce_gradients, c, s, 0));
    const auto stages = as_size(order.stages);
    for (auto i = g.reductions.size(); i-- > 0;)
      for (std::size_t k = i % stages; k < g.reductions.size(); k += stages)
        if (order.rank_of[k] == order.rank_of[i] && g.reductions[k] > g.reductions[i]) g.reductions[i] = -1;
  }
  return g;
}

}  // namespace hetsched::detail
