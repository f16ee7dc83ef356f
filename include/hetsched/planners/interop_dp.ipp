// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<plan> interop_dp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const interop_options& options) {
  validate_iteration(hardware, problem, "interop_dp");
  if (!(options.near_tie >= 0 && options.gap >= 0 && options.effort >= 0 && options.enumeration >= 0))
    throw input_error("near_tie, gap, effort and enumeration must not be negative");
  return detail::plan_with(hardware, costs, detail::warmup_algebra(options.warmup, options.epsilon), problem, options);
}

}  // namespace hetsched
