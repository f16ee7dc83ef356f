// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

HETSCHED_INLINE timeline side_by_side(const std::vector<timeline>& pipelines) {
  timeline all;
  for (const auto& t : pipelines) {
    for (auto a : t.actions) {
      a.rank += all.ranks;
      if (a.peer >= 0) a.peer += all.ranks;
      all.actions.push_back(a);
    }
    all.ranks += t.ranks;
    all.microbatches = std::max(all.microbatches, t.microbatches);
  }
  return all;
}

}  // namespace hetsched
