// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Warm-up counts of Virtual-1F1B: a boundary between clusters counts as a stage of its own, so every stage at or before it
/// starts one forward more than under 1F1B. cross[i]: stages i and i + 1 lie in different clusters.
/// Source: HetAuto, section 5.1.
[[nodiscard]] inline std::vector<int> virtual_1f1b_warmups(const std::vector<bool>& cross) {
  std::vector<int> counts(cross.size() + 1, 1);
  for (std::size_t i = cross.size(); i-- > 0;) counts[i] = counts[i + 1] + (cross[i] ? 2 : 1);
  return counts;
}

/// The boundaries whose transfers H-1F1B would not pass over: those taken for boundaries between clusters where none are named.
/// Throws: input_error for an invalid pipeline and an epsilon below 0.
[[nodiscard]] inline std::vector<bool> slow_boundaries(const pipeline& p, double epsilon = default_epsilon) {
  validate(p);
  detail::expect_natural(epsilon, "epsilon");
  const double best = detail::unchecked::best_period(p);
  std::vector<bool> slow;
  for (int i = 0; i + 1 < p.stages(); ++i) slow.push_back(detail::unchecked::h1f1b_step(p.slower_way_s(i), best, epsilon) > 1);
  return slow;
}

/// The schedule of these counts, computations only. That transfers between clusters go by way of both hosts, in three phases
/// that overlap with computation, is for the workload to say (tensor_path::staged) or for stage_transfers to list.
/// Throws: input_error unless there is at least one microbatch.
/// Complexity: O(stages * microbatches).
[[nodiscard]] inline schedule virtual_1f1b(const std::vector<bool>& cross, int microbatches) {
  return one_f_one_b(virtual_1f1b_warmups(cross), microbatches);
}

}  // namespace hetsched
