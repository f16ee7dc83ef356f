// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layout/training_layout_test.cpp.

#include <cstddef>
#include <string_view>
#include <vector>

#include <hetsched/plan/plan.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

struct layout_options {
  std::string_view schedule = {};  ///< "auto" or any of schedule_names(); empty: the pipelines' own
  int chunks = 2;                  ///< stages per rank of the interleaved and looped schedules
  /// In place of a name: one per pipeline, of one rank per stage of the plan, and of the plan's number of microbatches.
  std::vector<hetsched::schedule> orders = {};
};

namespace detail {

/// Every stage of a schedule on the stages of a plan: see make_training_layout. Tensors travel as the plan says of the boundary
/// between the two groups; directly where it says nothing.
[[nodiscard]] std::vector<stage_layout> stages_of_plan(const pipeline_plan& p, const schedule& order);

/// What the plan says of its stages, each a rank of the schedule.
/// Throws: input_error, naming the stage, for uneven shares of the context axis.
[[nodiscard]] std::vector<group_layout> groups_of_plan(const pipeline_plan& p, std::size_t pipeline);

/// The pipeline's own schedule, or the one that was asked for.
[[nodiscard]] schedule schedule_of_plan(const pipeline_plan& p, const layout_options& options);

}  // namespace detail

/// A plan as it is run: its stages are the schedule's ranks, pipeline after pipeline, and their devices, by their degrees, the
/// groups behind them. The plan's own schedule has the plan's warm-up counts, if it has any.
/// Where a schedule has one stage per rank in the plan's order, its stages are the plan's. Otherwise stages are cut anew as
/// contiguous ranges: every rank keeps, as near as whole layers allow, the number of layers that the plan gave it, in equal
/// parts for each of its stages.
/// Stages keep their shares of data, in whole samples by largest remainder, those of the tensor axis, which are up to the layers,
/// what they recompute, their ZeRO stage, and shares of the state that it shares out.
/// Throws: input_error where plan and schedules do not fit, for fewer layers than stages, and for what cannot be run: ZeRO stage
/// 3 and uneven shares of the context axis; and as build_schedule.
/// Example:
///   const auto found = interop_dp(machines, costs, {.microbatches = 8});
///   if (!found) throw input_error(found.why_not().reason);
///   const auto layout = make_training_layout(*found, {.schedule = "1f1b"});
[[nodiscard]] training_layout make_training_layout(const plan& p, const layout_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/plan_layout.ipp>
#endif
