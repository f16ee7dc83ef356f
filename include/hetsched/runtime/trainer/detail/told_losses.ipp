// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/detail/told_losses.hpp>

namespace hetsched::detail {

HETSCHED_INLINE bool has_last_stage(const training_layout& t, int rank) {
  const auto there = t.place_of(rank);
  const auto& order = at(t.pipelines, there.pipeline).order;
  for (int c = 0; c < order.directions; ++c)
    if (order.rank(c, order.stages - 1) == there.group) return true;
  return false;
}

HETSCHED_INLINE double loss_share(const training_layout& t, const pipeline_layout& p, int rank, bool in_parts) {
  if (in_parts) return 1;
  const auto there = t.place_of(rank);
  return there.context == 0 && there.tensor == 0 ? p.share_of(there.group, there.data) : 0;
}

}  // namespace hetsched::detail
