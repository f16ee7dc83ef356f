// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/microbatch.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<int> microbatch_sizes(int global_batch) {
  std::vector<int> small, large;
  for (std::int64_t d = 1; d * d <= global_batch; ++d) {
    if (global_batch % d != 0) continue;
    small.push_back(static_cast<int>(d));
    if (d * d != global_batch) large.push_back(static_cast<int>(global_batch / d));
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

HETSCHED_INLINE std::optional<std::vector<pipeline_plan>> with_microbatch_size(const plan& p, int size) {
  std::int64_t batch = 0;
  for (const auto& own : p.pipelines) batch += std::int64_t{own.microbatches} * own.microbatch_size;
  if (size < 1 || batch % size != 0) return std::nullopt;
  auto lines = p.pipelines;
  std::vector<double> left;  // of the share that has no whole microbatch
  std::int64_t open = batch / size;
  for (auto& own : lines) {
    for (auto& s : own.stages) {
      if (size % s.degrees.data != 0) return std::nullopt;
      s.warmup = 0;
    }
    const double share = static_cast<double>(own.microbatches) * own.microbatch_size / size;
    own.microbatches = static_cast<int>(share);
    own.microbatch_size = size;
    own.boundaries.clear();
    own.schedule.actions.reset();
    left.push_back(share - own.microbatches);
    open -= own.microbatches;
  }
  for (; open > 0; --open) {
    const auto most = std::max_element(left.begin(), left.end());
    ++at(lines, most - left.begin()).microbatches;
    *most -= 1;
  }
  std::erase_if(lines, [](const pipeline_plan& own) { return own.microbatches == 0; });
  return lines;
}

namespace detail {

struct tried_size {
  size_request request;
  double value = 0, bound = 0, sum_bound = 0;  // objective of the plan; of any
  bool complete = true;
};

// Puts sizes in the order of their full searches. First plans up to `good` are alike.
inline void order_sizes(std::vector<tried_size>& sizes, double good) {
  // A plan that is far from its bound says little: searches of small sizes are short.
  const auto telling = [](const tried_size& s) { return s.value <= 2 * s.bound || !(s.bound > 0); };
  std::stable_sort(sizes.begin(), sizes.end(), [&](const tried_size& a, const tried_size& b) {
    if (telling(a) != telling(b)) return telling(a);
    return telling(a) && std::max(a.value, good) < std::max(b.value, good);
  });
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> best_microbatch_size(int global_batch,
                                                   const std::function<outcome<plan>(const size_request&)>& plan_for,
                                                   const std::function<bool()>& go_on, const std::function<double(int)>& bound_of,
                                                   double alike) {
  if (global_batch < 1) throw input_error("the global batch must be at least 1");
  std::vector<detail::tried_size> sizes;
  std::optional<plan> best;
  std::optional<refusal> first_refusal;
  bool stopped = false;
  const auto ask = [&](detail::tried_size& s) {
    s.request.best = best ? &*best : nullptr;
    outcome<plan> found = plan_for(s.request);
    if (!found) {
      // The search of a size that ended at a limit of its own says nothing of the others.
      stopped = stopped || (found.why_not().why == refusal::kind::stopped && !(go_on && go_on()));
      if (!first_refusal) first_refusal = found.why_not();
      return false;
    }
    s.value = objective_of(*found);
    if (found->evidence) {
      s.bound = std::max(s.bound, found->evidence->objective_bound);
      s.sum_bound = found->evidence->sum_bound;
      s.complete = found->evidence->complete;
    }
    if (!best || s.value < objective_of(*best)) best = *std::move(found);
    return true;
  };
  const auto least = [&] { return objective_of(*best); };

  for (const int size : microbatch_sizes(global_batch)) {
    stopped = stopped || (best && go_on && !go_on());
    detail::tried_size s{.request = {size, global_batch / size, true}, .bound = bound_of ? bound_of(size) : 0};
    // One that nobody looked at counts with what is known of it.
    const bool looked_at = !stopped && ask(s);
    if (looked_at || stopped) sizes.push_back(s);
  }
  if (!best) return *std::move(first_refusal);
  detail::order_sizes(sizes, alike * objective_of(*best));
  double enough = infinity;
  for (auto& s : sizes) {
    if (s.complete || s.bound >= least()) continue;
    if (stopped || (go_on && !go_on())) break;
    s.request.first_plan = false;
    s.request.beat = least();
    s.request.enough = enough;
    if (ask(s)) enough = std::min(enough, s.bound);
  }
  if (auto& evidence = best->evidence) {
    evidence->complete = !stopped;
    evidence->objective_bound = evidence->objective_value;
    for (const auto& s : sizes) {
      evidence->complete = evidence->complete && (s.complete || s.bound >= least());
      evidence->objective_bound = std::min(evidence->objective_bound, s.bound);
      evidence->sum_bound = stopped ? 0 : std::min(evidence->sum_bound, s.sum_bound);
    }
  }
  return *std::move(best);
}

}  // namespace hetsched
