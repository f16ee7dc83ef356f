// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>

namespace hetsched::detail {

/// Whether a rank has a last stage of its pipeline, and so knows losses.
[[nodiscard]] bool has_last_stage(const training_layout& t, int rank);

/// How much of a rank's loss counts in its microbatch's; `in_parts` as trainer_options::loss_in_parts.
[[nodiscard]] double loss_share(const training_layout& t, const pipeline_layout& p, int rank, bool in_parts);

/// Over the microbatches of all pipelines, each times weight_of(pipeline). told[r][next[r]]: the first that rank r tells, if it
/// has a last stage; next is behind the last one then.
/// Complexity: O(microbatches * ranks * directions).
template <class Weight>
[[nodiscard]] double sum_of_losses(const training_layout& t, const std::vector<std::vector<double>>& told,
                                   std::vector<std::size_t>& next, bool in_parts, Weight&& weight_of) {
  double sum = 0;
  for (const auto& p : t.pipelines)
    for (int m = 0; m < p.order.microbatches; ++m) {
      double loss = 0;
      for (int r = p.first_rank; r < p.first_rank + p.ranks(); ++r) {
        if (!has_last_stage(t, r)) continue;
        const auto rank = as_size(r);
        const double own = told[rank][next[rank]++];
        if (const double share = loss_share(t, p, r, in_parts); share > 0) loss += share == 1 ? own : share * own;
      }
      sum += weight_of(p) * loss;
    }
  return sum;
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/detail/told_losses.ipp>
#endif
