// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/published_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/plan/gradient_groups.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/hexiscale/hand_out.hpp>

namespace hetsched {

/// A pipeline's pace by HexiScale's own sum, in which a stage computes nothing while its transfers are under way. The paper's
/// maximum leaves out the first stage, which looks like a slip: here it is over all.
/// Throws: input_error for a plan that was not evaluated, or has times that are none.
/// Source: HexiScale Eq. 9.
[[nodiscard]] inline line_pace hexiscale_pace(const pipeline_plan& line) {
  detail::expect_size(line.boundaries.size() + 1, line.stages.size(), "boundaries and one more", "one per stage");
  line_pace pace;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    double seconds = line.stages[i].cost.total_s();
    if (i + 1 < line.stages.size()) seconds += line.boundaries[i].forward_s + line.boundaries[i].backward_s;
    detail::expect_natural(seconds, "a stage and its boundary");
    pace.latency_s += seconds;
    pace.period_s = std::max(pace.period_s, seconds);
  }
  return pace;
}

/// Seconds of an iteration by HexiScale's own sum: the slowest pipeline, and then the stage with most gradients to add up.
/// evaluate, which plays the schedule and overlaps transfers and reductions with computing, is what plans are judged by
/// elsewhere. Throws: input_error for a plan that was not evaluated. Source: HexiScale Eq. 7-10.
[[nodiscard]] inline double hexiscale_iteration_s(const plan& p) {
  double slowest = 0, longest = 0;
  for (const auto& line : p.pipelines) slowest = std::max(slowest, hexiscale_pace(line).end_s(line.microbatches));
  const auto groups = gradient_groups(p);
  detail::expect_size(p.gradient_sync.size(), groups.size(), "gradient_sync", "one per group of pipelines that share gradients");
  detail::expect_count(microbatch_count(p), "microbatches");
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    std::vector<double> seconds(p.pipelines[l].stages.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
      longest = std::max(longest, at(seconds, groups[g].stages[l]) += p.gradient_sync[g].seconds);
  }
  detail::expect_natural(slowest + longest, "seconds of an iteration");
  return slowest + longest;
}

}  // namespace hetsched
