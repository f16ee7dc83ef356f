// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/runtime/measure/rank_times.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

HETSCHED_INLINE rank_times times_of_rank(const timeline& t, int rank) {
  rank_times found;
  double first_s = infinity, last_s = 0;
  for (const auto& a : t.actions) {
    if (a.rank != rank || !is_compute(a.what.kind)) continue;
    const double took_s = a.end_s - a.start_s;
    first_s = std::min(first_s, a.start_s);
    last_s = std::max(last_s, a.end_s);
    found.computing_s += took_s;
    const stage_time key{.direction = a.what.direction, .stage = a.what.stage};
    auto at = std::lower_bound(found.stages.begin(), found.stages.end(), key, [](const stage_time& x, const stage_time& y) {
      return x.direction != y.direction ? x.direction < y.direction : x.stage < y.stage;
    });
    if (at == found.stages.end() || at->direction != key.direction || at->stage != key.stage) at = found.stages.insert(at, key);
    (a.what.kind == action_kind::forward || a.what.kind == action_kind::recompute ? at->forward_s : at->backward_s) += took_s;
  }
  if (!found.stages.empty()) found.span_s = last_s - first_s;
  return found;
}

}  // namespace hetsched
