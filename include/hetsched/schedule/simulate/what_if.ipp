// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>
#include <hetsched/schedule/simulate/what_if.hpp>

namespace hetsched {

HETSCHED_INLINE workload with_free_rank(workload w, const schedule& order, int rank) {
  detail::validate_fit(w, order);
  detail::expect_size(order.rank_of.size(), w.work.size(), "the stage map", "one per stage of the workload");
  detail::expect_count(rank, "the rank that is free", 0, order.ranks - 1);
  for (std::size_t k = 0; k < w.work.size(); ++k)
    if (order.rank_of[k] == rank) {
      stage_work& s = w.work[k];
      s.forward_s = s.backward_s = s.weight_backward_s = s.recompute_s = s.optimizer_s = 0;
    }
  return w;
}

HETSCHED_INLINE workload with_free_wire(workload w, int wire) {
  detail::expect_count(wire, "the wire that is free", 0, static_cast<std::int64_t>(w.wires.size()) - 1);
  for (auto* paths : {&w.activations, &w.gradients})
    for (auto& r : *paths)
      for (auto* leg : {&r.d2h, &r.network, &r.h2d}) {
        bool taken = false, others = false;
        for (int& at : leg->wires) {
          taken = taken || at == wire;
          others = others || (at >= 0 && at != wire);
          if (at == wire) at = -1;
        }
        if (taken && !others) leg->occupied_s = leg->latency_s = 0;
      }
  return w;
}

HETSCHED_INLINE what_if_result what_if(const workload& w, const schedule& order, const simulate_options& options) {
  const auto graph = detail::make_event_graph(order);
  const auto makespan_of = [&](const workload& changed) {
    return detail::event_run(graph, changed, options.semantics, false).makespan_s;
  };
  what_if_result result{.makespan_s = makespan_of(w), .free_rank_s = {}, .free_wire_s = {}};
  for (int r = 0; r < order.ranks; ++r) result.free_rank_s.push_back(makespan_of(with_free_rank(w, order, r)));
  for (std::size_t k = 0; k < w.wires.size(); ++k)
    result.free_wire_s.push_back(makespan_of(with_free_wire(w, static_cast<int>(k))));
  return result;
}

}  // namespace hetsched
