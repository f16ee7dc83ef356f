// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// The plan of most predicted samples per second among the microbatch sizes 1, 2, 4 ... that divide the global batch.
/// `plan_for(size, microbatches)` returns an outcome<plan>. The search ends where a size is stopped; what was found until then
/// counts. The evidence is that of the plan's own size; it is complete only if the search of every size was.
/// Returns: the plan, or the refusal of the first size.
/// Throws: input_error for a batch below 1.
template <class PlanFor>
[[nodiscard]] outcome<plan> best_microbatch_size(int global_batch, PlanFor&& plan_for) {
  if (global_batch < 1) throw input_error("the global batch must be at least 1");
  std::optional<plan> best;
  std::optional<refusal> first_refusal;
  bool complete = true, stopped = false;
  for (std::int64_t size = 1; global_batch % size == 0 && !stopped; size *= 2) {
    outcome<plan> candidate = plan_for(static_cast<int>(size), static_cast<int>(global_batch / size));
    if (candidate) {
      complete = complete && !(candidate->evidence && !candidate->evidence->complete);
      if (!best || candidate->predicted.samples_per_s > best->predicted.samples_per_s) best = *std::move(candidate);
    } else {
      stopped = candidate.why_not().why == refusal::kind::stopped;
      if (!first_refusal) first_refusal = candidate.why_not();
    }
  }
  if (!best) return *std::move(first_refusal);
  if (best->evidence) best->evidence->complete = complete && !stopped;
  return *std::move(best);
}

}  // namespace hetsched
