// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/planners/interop_dp/detail/interop_planner.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>

namespace hetsched::detail {

HETSCHED_INLINE outcome<plan> one_pipeline_search(const cluster& hardware, const any_cost_model& costs,
                                                  const interop_problem& problem, const stage_prices& table,
                                                  warmup_algebra algebra, const planning_problem& asked,
                                                  const interop_options& options) {
  return interop_planner(hardware, costs, problem, table, algebra, asked, options).run();
}

}  // namespace hetsched::detail
