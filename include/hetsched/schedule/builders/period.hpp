// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Seconds per microbatch of the 1F1B family once the pipeline is full: the largest cycle ratio of its timed event graph,
///   max( max t_i, max o_i, max over i < j of (sum of t over i..j + sum of round trips between them) / (N_i - N_j + 1) )
/// with o_i how long transfers occupy boundary i, and round trips in full. No other cycle can bind: one that leaves its first
/// stage and turns back more than once passes a forward twice.
/// Throws: input_error for an invalid pipeline and as validate_warmups.
/// Complexity: O(S^2) for S stages.
[[nodiscard]] double period(const pipeline& p, const std::vector<int>& warmups);

/// Least period that any warm-up counts with N_i <= caps[i] reach; exact_warmups(p, fastest_period(p, caps)) are such counts.
/// Bisection over the period, in which exact_warmups falls, down to neighbouring doubles.
/// Returns: the period() of the counts found; infinity if a cap is below 1, and only then, as caps of 1 throughout are enough
/// for the period of the whole round trip, one microbatch after the other.
/// Throws: input_error for an invalid pipeline or if caps are not one per stage.
/// Complexity: O(S^2 + 60 S) for S stages.
[[nodiscard]] double fastest_period(const pipeline& p, const std::vector<int>& caps);

/// Least warm-up counts of the shortest period that memory allows: N_i <= caps[i].
/// Throws: as fastest_period, and input_error for a cap below 1.
/// Complexity: as fastest_period.
[[nodiscard]] inline std::vector<int> exact_warmups_within(const pipeline& p, const std::vector<int>& caps) {
  for (const int cap : caps) detail::expect_count(cap, "a cap of warm-up counts");
  return detail::unchecked::exact_warmups(p, fastest_period(p, caps));
}

/// GPipe's period: its phases follow each other, each as slow as its slowest step. Throws: input_error for an invalid pipeline.
[[nodiscard]] double gpipe_period(const pipeline& p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/period.ipp>
#endif
