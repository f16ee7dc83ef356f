// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/neighbours_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// Equal pipelines of a set.
struct pipeline_kind {
  std::vector<interop_stage> stages;
  std::vector<int> microbatches;  // of each
};

/// The kinds of pipelines of the best plan; none if there is no plan, or one of its placements is not known here.
template <class Candidates>
[[nodiscard]] std::vector<pipeline_kind> kinds_of_best(Candidates& found) {
  std::vector<pipeline_kind> kinds;
  if (!found.best()) return kinds;
  for (const auto& own : found.best()->pipelines) {
    auto stages = found.stages_of(own);
    if (!stages) return {};
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.stages == *stages; });
    if (known != kinds.end())
      known->microbatches.push_back(own.microbatches);
    else
      kinds.push_back({*std::move(stages), {own.microbatches}});
  }
  return kinds;
}

/// Whether a pipeline of the plan comes back to a subcluster, which searches for a single one do not allow.
/// Requires: stages on one subcluster each.
[[nodiscard]] inline bool comes_back(const plan& p) {
  return std::any_of(p.pipelines.begin(), p.pipelines.end(), [](const pipeline_plan& own) {
    std::vector<int> left;
    for (std::size_t i = 1; i < own.stages.size(); ++i) {
      const int from = own.stages[i - 1].where().mesh.subcluster, to = own.stages[i].where().mesh.subcluster;
      if (from != to) left.push_back(from);
      if (std::find(left.begin(), left.end(), to) != left.end()) return true;
    }
    return false;
  });
}

/// What candidates judge.
template <class Candidates>
[[nodiscard]] std::vector<typename Candidates::line> lines_of(const std::vector<pipeline_kind>& kinds) {
  std::vector<typename Candidates::line> lines;
  for (const auto& k : kinds)
    for (const int m : k.microbatches) lines.push_back({&k.stages, m});
  return lines;
}

}  // namespace hetsched::detail
