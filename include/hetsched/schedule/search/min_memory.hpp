// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/outcome.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>

namespace hetsched {

/// A schedule with a small peak, and how small a peak can be at all.
struct min_memory_result {
  auto_result best;
  double peak_memory = 0;         ///< most that any stage holds
  double memory_lower_bound = 0;  ///< no order within the makespan gets by with less on every stage; 0 if stages may be cut
};

/// The least peak of activation memory over all stages with which auto_schedule ends within `makespan_s`. Any limits in
/// `options` hold as well. Bisection over the peaks that whole microbatches can make (with a weight_backward_share between 0
/// and 1, peaks between them are not tried).
/// Returns: a refusal if auto_schedule does not end in time with the memory that options allow.
/// Throws: as auto_schedule, and input_error for a makespan that is no time.
/// Complexity: O(log(S M)) times auto_schedule, for S stages and M microbatches.
/// Determinism: the same on every machine.
[[nodiscard]] outcome<min_memory_result> min_memory(const pipeline& p, int microbatches, double makespan_s,
                                                    const auto_options& options = {});

/// auto_schedule within the memory that options allow, and then within less and less of it, the same share everywhere, down to
/// 1/32, as long as the makespan does not grow by more than 0.1 %: memory that brings nothing is better left free. The lower
/// bound is that of all the memory, unless another way to cut stages is found. Without limits as auto_schedule. Less memory is
/// tried as long as options.progress goes on.
/// Returns: a refusal as auto_schedule.
/// Throws: as auto_schedule.
/// Complexity: six times auto_schedule.
/// Determinism: the same on every machine.
[[nodiscard]] outcome<auto_result> auto_with_little_memory(const pipeline& p, int microbatches, const auto_options& options);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/search/min_memory.ipp>
#endif
