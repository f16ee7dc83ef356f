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

/// Calls body(rank) for the ranks of a pipeline that have a last stage, ascending.
template <class Body>
void for_last_ranks(const pipeline_layout& p, Body&& body) {
  for (int before = -1;;) {
    int group = p.order.ranks;  // the next one
    for (int c = 0; c < p.order.directions; ++c)
      if (const int g = p.order.rank(c, p.order.stages - 1); g > before && g < group) group = g;
    if (group == p.order.ranks) return;
    const int first = p.first_of_group(group);
    for (int r = first; r < first + p.degrees_of(group).device_count(); ++r) body(r);
    before = group;
  }
}

/// Over the microbatches of all pipelines, each times weight_of(pipeline). told[r][first + m]: what rank r tells of microbatch m
/// if it has a last stage. Complexity: O(microbatches * ranks that have one).
template <class Weight>
[[nodiscard]] double sum_of_losses(const training_layout& t, const std::vector<std::vector<double>>& told, std::size_t first,
                                   bool in_parts, Weight&& weight_of) {
  double sum = 0;
  for (const auto& p : t.pipelines)
    for (int m = 0; m < p.order.microbatches; ++m) {
      double loss = 0;
      for_last_ranks(p, [&](int r) {
        const double own = told[as_size(r)][first + as_size(m)];
        if (const double share = loss_share(t, p, r, in_parts); share > 0) loss += share == 1 ? own : share * own;
      });
      sum += weight_of(p) * loss;
    }
  return sum;
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/detail/told_losses.ipp>
#endif
