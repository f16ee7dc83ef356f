// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Seconds below which no schedule of the microbatches on these stages and links can end, whatever its order and memory.
/// With the round trip r_k over boundary k in place of 2c_k, the largest of
///   sum over k < i of (t_k + r_k) + M t_i             stage i cannot start before its first input, works M t_i, and its last
///                                                     gradient still has to reach the first stage;
///   sum of all t_k and r_k + (M - 1) x                x a forward, backward, activation or gradient transfer: M of them go
///                                                     one by one, and the first and the last microbatch pass everything else.
/// Throws input_error for an invalid pipeline or microbatches < 1. O(S).
[[nodiscard]] inline double makespan_lower_bound(const pipeline& p, int microbatches) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  const double m = microbatches;
  double before_s = 0, bound_s = 0, slowest_step_s = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    bound_s = std::max(bound_s, before_s + m * p.compute_s(i));
    slowest_step_s = std::max({slowest_step_s, p.forward_s[k], p.backward_s[k]});
    before_s += p.compute_s(i);
    if (i + 1 == p.stages()) break;
    slowest_step_s = std::max(slowest_step_s, p.slower_way_s(i));
    before_s += p.round_trip_s(i);
  }
  return std::max(bound_s, before_s + (m - 1) * slowest_step_s);
}

}  // namespace hetsched
