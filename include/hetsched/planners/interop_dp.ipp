// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<plan> interop_dp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const interop_options& options) {
  price_book book(hardware, costs);
  return interop_dp(book, problem, options);
}

HETSCHED_INLINE outcome<plan> interop_dp(price_book& book, const planning_problem& problem, const interop_options& options) {
  const auto& hardware = book.hardware();
  validate_iteration(hardware, problem, "interop_dp");
  if (!(options.near_tie >= 0 && options.gap >= 0 && options.effort >= 0 && options.enumeration >= 0))
    throw input_error("near_tie, gap, effort and enumeration must not be negative");
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) {
        auto found = detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, problem, options);
        // Where links are missing, the order that a local search starts with may lead nowhere.
        constexpr std::size_t most_ordered = 8;
        if (found || found.why_not().why != refusal::kind::infeasible || !detail::has_free_order(hardware, options.order) ||
            hardware.subclusters.size() > most_ordered)
          return found;
        auto all = options;
        all.order = subcluster_order::all;
        return detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, problem, all);
      },
      problem.poll());
}

}  // namespace hetsched
