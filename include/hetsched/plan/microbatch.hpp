// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// The plan of most predicted samples per second among the microbatch sizes 1, 2, 4 ... that divide the global batch.
/// `plan_for(size, microbatches)` returns an outcome<plan>. No plan: the reason for size 1. The search ends where a size is
/// stopped; what was found until then counts. Throws input_error for a batch below 1.
template <class PlanFor>
[[nodiscard]] outcome<plan> best_microbatch_size(int global_batch, PlanFor&& plan_for) {
  if (global_batch < 1) throw input_error("the global batch must be at least 1");
  std::optional<plan> best;
  std::optional<refusal> first_refusal;
  for (int size = 1; global_batch % size == 0; size *= 2) {
    outcome<plan> candidate = plan_for(size, global_batch / size);
    if (!candidate) {
      if (!first_refusal) first_refusal = candidate.why_not();
      if (candidate.why_not().why == refusal::kind::stopped) break;
    } else if (!best || candidate->predicted.samples_per_s > best->predicted.samples_per_s) {
      best = *std::move(candidate);
    }
    if (size > global_batch / 2) break;
  }
  if (best) return *std::move(best);
  return *std::move(first_refusal);
}

}  // namespace hetsched
