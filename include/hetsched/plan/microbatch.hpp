// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// A microbatch size that a plan is wanted for.
struct size_request {
  int microbatch_size = 1;
  int microbatches = 1;
  bool first_plan = false;                                ///< any plan will do, soon
  double beat = std::numeric_limits<double>::infinity();  ///< the least objective known, of any size
};

/// The sizes of equal microbatches that a batch can be cut into: its divisors, from 1 up. O(sqrt batch).
/// Requires: a batch of 1 or more.
[[nodiscard]] inline std::vector<int> microbatch_sizes(int global_batch) {
  std::vector<int> small, large;
  for (std::int64_t d = 1; d * d <= global_batch; ++d) {
    if (global_batch % d != 0) continue;
    small.push_back(static_cast<int>(d));
    if (d * d != global_batch) large.push_back(static_cast<int>(global_batch / d));
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

/// The plan of the least objective among the microbatch sizes that divide the global batch.
/// `plan_for(size_request)` returns an outcome<plan>: it is called for a first plan of every size, and again, sizes of good first
/// plans first, where that one's evidence is not complete and its bound leaves hope. `go_on()` is asked before each call but the
/// first ones until there is a plan; false ends the search, as does a refusal of kind stopped. The evidence's bound is the least
/// of all sizes; it is complete if the search of every size was, or showed that the size cannot win.
/// Returns: the plan, the smaller size of equals, or the refusal of the first size.
/// Throws: input_error for a batch below 1.
template <class PlanFor, class GoOn>
[[nodiscard]] outcome<plan> best_microbatch_size(int global_batch, PlanFor&& plan_for, GoOn&& go_on) {
  if (global_batch < 1) throw input_error("the global batch must be at least 1");
  struct tried_size {
    size_request request;
    double value = 0, bound = 0;  // objective of the plan; of any
    bool complete = true;
  };
  std::vector<tried_size> sizes;
  std::optional<plan> best;
  std::optional<refusal> first_refusal;
  bool stopped = false;
  const auto ask = [&](tried_size& s) {
    outcome<plan> found = plan_for(std::as_const(s.request));
    if (!found) {
      stopped = stopped || found.why_not().why == refusal::kind::stopped;
      if (!first_refusal) first_refusal = found.why_not();
      return false;
    }
    s.value = objective_of(*found);
    if (found->evidence) {
      s.bound = std::max(s.bound, found->evidence->objective_bound);
      s.complete = found->evidence->complete;
    }
    if (!best || s.value < objective_of(*best)) best = *std::move(found);
    return true;
  };
  const auto least = [&] { return objective_of(*best); };

  for (const int size : microbatch_sizes(global_batch)) {
    if (stopped || (best && !go_on())) {
      stopped = true;
      break;
    }
    tried_size s{.request = {size, global_batch / size, true}};
    if (ask(s)) sizes.push_back(s);
  }
  if (!best) return *std::move(first_refusal);
  std::stable_sort(sizes.begin(), sizes.end(), [](const tried_size& a, const tried_size& b) { return a.value < b.value; });
  for (auto& s : sizes) {
    if (s.complete || s.bound >= least()) continue;
    if (stopped || !go_on()) break;
    s.request.first_plan = false;
    s.request.beat = least();
    (void)ask(s);
  }
  if (auto& evidence = best->evidence) {
    evidence->complete = !stopped;
    evidence->objective_bound = stopped ? 0 : evidence->objective_value;  // 0: there are sizes that nobody looked at
    for (const auto& s : sizes) {
      evidence->complete = evidence->complete && (s.complete || s.bound >= least());
      evidence->objective_bound = std::min(evidence->objective_bound, s.bound);
    }
  }
  return *std::move(best);
}

/// The same to the end.
template <class PlanFor>
[[nodiscard]] outcome<plan> best_microbatch_size(int global_batch, PlanFor&& plan_for) {
  return best_microbatch_size(global_batch, plan_for, [] { return true; });
}

}  // namespace hetsched
