// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

/// Seconds below which no schedule of the microbatches on these stages and links can end, whatever its order and memory, if
/// it keeps every backward whole. With the round trip r_k over boundary k in place of 2c_k, the largest of
///   sum over k < i of (t_k + r_k) + M t_i             stage i cannot start before its first input, works M t_i, and its last
///                                                     gradient still has to reach the first stage;
///   sum of all t_k and r_k + (M - 1) x                x a forward, a backward, or what an activation or gradient occupies a
///                                                     boundary for: M of them go one by one, and the first and the last
///                                                     microbatch pass everything else.
/// It does not hold for split backwards (split_backward_lower_bound does) nor for several virtual stages per rank.
/// Throws: input_error for an invalid pipeline or microbatches < 1.
/// Complexity: O(S) for S stages.
[[nodiscard]] double makespan_lower_bound(const pipeline& p, int microbatches);

/// The same for schedules that may split any backward, whole ones included. With w_i the weight gradient, d_i the rest of the
/// backward, a_i and g_i the ways over boundary i, and A_i = sum over k < i of (f_k + a_k), the largest of
///   A_i + M t_i                                  stage i works M t_i from its first input on; weight gradients may come last;
///   A_i + M (f_i + d_i) + R_i                    its last input gradient still has to go back, R_i seconds: to the first stage,
///                                                or to any on the way, which has that microbatch's weight gradient before it;
///   sum of all f_k, d_k, a_k and g_k + w_0 + (M - 1) x   x as above, with d_k for a backward; R_i in full in place of w_0.
/// Equal to makespan_lower_bound where no weight_backward_s are given.
/// Throws: input_error for an invalid pipeline or microbatches < 1.
/// Complexity: O(S) for S stages.
[[nodiscard]] double split_backward_lower_bound(const pipeline& p, int microbatches);

namespace detail {

/// From when a tensor sets out to when it arrives, if nothing is in its way.
[[nodiscard]] inline double way_s(const tensor_path& path) {
  const auto leg_s = [](const hop& h) { return h.occupied_s + h.latency_s; };
  return path.staged ? leg_s(path.d2h) + leg_s(path.network) + leg_s(path.h2d) : leg_s(path.network);
}

}  // namespace detail

/// Seconds below which no schedule can end that lists the same computations on the same ranks, in whatever order: for any
/// stage map, split backwards and workload. Work on parameters is left out. With fused computations every time on a way counts
/// only fused_factor, if that is less than 1.
/// Returns: the largest of detail::microbatch_bound, detail::rank_bound and detail::wire_bound.
/// Throws: input_error for an invalid workload or one that does not fit the schedule.
/// Complexity: O(actions + wires).
[[nodiscard]] double makespan_lower_bound(const workload& w, const schedule& order);

/// Whether rank r runs stage r and no other.
[[nodiscard]] inline bool one_stage_per_rank(const schedule& order) {
  if (order.directions != 1 || order.stages < 0 || order.rank_of.size() != as_size(order.stages)) return false;
  for (int s = 0; s < order.stages; ++s)
    if (order.rank_of[as_size(s)] != s) return false;
  return true;
}

/// The best of the bounds above for the actions of a schedule on its ranks: seconds below which no order of them can end.
/// `work`: the schedule's workload on the pipeline, by make_workload.
/// Throws: as the bounds above, and input_error for a pipeline whose stages are not the schedule's ranks.
[[nodiscard]] double makespan_lower_bound(const pipeline& p, const workload& work, const schedule& order);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/bounds.ipp>
#endif
