// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<timed_action> critical_path(const workload& w, const schedule& order,
                                                        const simulate_options& options) {
  const auto graph = detail::make_event_graph(order);
  const detail::event_run run(graph, w, options.semantics, true);
  std::vector<timed_action> path;
  int n = -1;
  for (std::size_t k = 0; k < run.log.size() && n < 0; ++k) {
    const auto& a = run.log[k];
    if (!is_transfer(a.what.kind) && a.end_s == run.makespan_s && a.end_s > 0) n = static_cast<int>(k);
  }
  for (; n >= 0; n = at(run.causes, n)) path.push_back(at(run.log, n));
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace hetsched
