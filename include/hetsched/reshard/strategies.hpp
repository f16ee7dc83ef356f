// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>

#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategy.hpp>
#include <hetsched/reshard/transfer_plan.hpp>

namespace hetsched {

struct reshard_options {
  /// Parts of the first mesh axis that go their way each by itself, as no other stage mixes them (HetAuto sec. 5.2: the greatest
  /// common divisor of a pipeline's data degrees). Counts for one_to_one and inner_rank_0, and only where both sides cut the
  /// tensor at these places.
  int outer = 1;
  int chunks = 1;  ///< of strategies with several phases
};

/// The same messages, cut into so many chunks of the tensor along the dimension that messages have most of; the later phases of
/// one chunk then overlap with the earlier ones of the next.
[[nodiscard]] transfer_plan in_chunks(const transfer_plan& p, int chunks);

/// Who sends what to whom if a tensor goes from one layout to another in a certain way. Where a strategy does not fit the layouts
/// it does less of what it is named for, down to direct.
/// Requires: valid layouts.
/// Throws: input_error if they are not of one tensor.
/// Complexity: O((S + D) log S + O) for S and D different slices on both sides, of which O pairs overlap along the first
/// dimension. Example:
///   const auto plan = plan_transfer(boundary_layout({.data = 2, .tensor = 4}, 16, 8192, 4096),
///                                   boundary_layout({.data = 2}, 16, 8192, 4096), reshard_strategy::direct);
/// Source: HetAuto sec. 5.2; HexiScale sec. 3.2; hetsched: the last four.
[[nodiscard]] transfer_plan plan_transfer(const layout& from, const layout& to, reshard_strategy strategy,
                                          const reshard_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/strategies.ipp>
#endif
