// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/hexiscale/detail/planner.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<plan> hexiscale(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                        const hexiscale_options& options) {
  price_book book(hardware, costs);
  return hexiscale(book, problem, options);
}

HETSCHED_INLINE outcome<plan> hexiscale(price_book& book, const planning_problem& problem, const hexiscale_options& options) {
  validate_iteration(book.hardware(), problem, "hexiscale");
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  if (options.max_pipelines < 1 || options.seeds < 1 || options.most_vertices < 1 || options.top < 1 || options.balance.empty() ||
      !(options.polish_effort >= 0 && options.polish_effort <= 1e9))
    throw input_error("max_pipelines, seeds, most_vertices, top and polish_effort must be positive, and balance not empty");
  for (const double b : options.balance)
    if (!(b >= 1 && b < infinity)) throw input_error("balance must be a finite number of at least 1");
  return detail::hexiscale_planner(book, problem, options).run();
}

}  // namespace hetsched
