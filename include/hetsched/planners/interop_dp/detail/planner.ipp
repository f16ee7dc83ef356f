// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

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

HETSCHED_INLINE std::optional<refusal> why_no_pipeline(const cluster& hardware, const any_cost_model& costs,
                                                       const interop_problem& problem, const stage_prices& table,
                                                       planning_problem asked) {
  asked.beat = infinity;
  asked.progress = [](const search_progress&) { return false; };  // a first plan is enough
  const auto found =
      one_pipeline_search(hardware, costs, problem, table, warmup_algebra(warmup_rule::exact, default_epsilon), asked, {});
  if (found || found.why_not().why != refusal::kind::infeasible) return std::nullopt;
  return found.why_not();
}

}  // namespace hetsched::detail
