// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <optional>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/warmup_algebra.hpp>
#include <hetsched/planners/interop_dp/options.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// The search of interop_dp, for planners that have the tables already.
[[nodiscard]] outcome<plan> one_pipeline_search(const cluster& hardware, const any_cost_model& costs,
                                                const interop_problem& problem, const stage_prices& table, warmup_algebra algebra,
                                                const planning_problem& asked, const interop_options& options);

/// What interop_dp says if it finds no pipeline at all: planners of one kind of pipelines that find none ask it, since it names
/// the layer, stage or link where others know only that nothing fits.
[[nodiscard]] std::optional<refusal> why_no_pipeline(const cluster& hardware, const any_cost_model& costs,
                                                     const interop_problem& problem, const stage_prices& table,
                                                     planning_problem asked);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/interop_dp/detail/planner.ipp>
#endif
