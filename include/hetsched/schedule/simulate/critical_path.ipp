// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<timed_action> critical_path(const workload& w, const schedule& order,
                                                        const simulate_options& options) {
  const auto graph = detail::make_event_graph(order);
  const detail::event_run run(graph, w, options.semantics, true);
  std::vector<timed_action> path;
  int at = -1;
  for (std::size_t k = 0; k < run.log.size() && at < 0; ++k) {
    const auto& a = run.log[k];
    if (!is_transfer(a.what.kind) && a.end_s == run.makespan_s && a.end_s > 0) at = static_cast<int>(k);
  }
  for (; at >= 0; at = run.causes[static_cast<std::size_t>(at)]) path.push_back(run.log[static_cast<std::size_t>(at)]);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace hetsched
