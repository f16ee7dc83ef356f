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

inline constexpr int most_chunks = 1 << 20;

/// The same messages, cut into so many chunks of the tensor along the dimension that messages have most of; the later phases of
/// one chunk then overlap with the earlier ones of the next.
/// Throws: input_error for less than one chunk or more than most_chunks, and for a plan whose messages are not of its devices,
/// dimensions and phases.
[[nodiscard]] transfer_plan in_chunks(const transfer_plan& p, int chunks);

namespace detail {

/// Checks a plan. Throws: input_error unless its phases and messages are of its devices and dimensions, and their elements can
/// be added up in 64 bits. Returns: all elements together.
std::int64_t validate(const transfer_plan& p);

namespace unchecked {

// Of plans, layouts and options that are known to be good.
[[nodiscard]] transfer_plan in_chunks(const transfer_plan& p, int chunks);
[[nodiscard]] transfer_plan plan_transfer(const layout& from, const layout& to, reshard_strategy strategy,
                                          const reshard_options& options);

}  // namespace unchecked

/// Throws: as plan_transfer does of its layouts and its strategy.
void expect_strategy(reshard_strategy s);
void validate_pair(const layout& from, const layout& to);

}  // namespace detail

/// Who sends what to whom if a tensor goes from one layout to another in a certain way. Where a strategy does not fit the layouts
/// it does less of what it is named for, down to direct.
/// Throws: input_error for layouts that are not valid, or not of one tensor, and for less than one outer part or chunk.
/// Complexity: O((S + D) log S + O) for S and D different slices on both sides, of which O pairs overlap along the first
/// dimension.
/// Example:
///   const auto plan = plan_transfer(boundary_layout({.data = 2, .tensor = 4}, 16, 8192, 4096),
///                                   boundary_layout({.data = 2}, 16, 8192, 4096), reshard_strategy::direct);
/// Source: HetAuto sec. 5.2; HexiScale sec. 3.2; hetsched: the last four.
[[nodiscard]] transfer_plan plan_transfer(const layout& from, const layout& to, reshard_strategy strategy,
                                          const reshard_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/strategies.ipp>
#endif
