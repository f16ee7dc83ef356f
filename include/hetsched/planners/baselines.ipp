// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/planners/baselines.hpp>
#include <hetsched/planners/baselines/detail/alpa_program.hpp>
#include <hetsched/planners/baselines/detail/amp_cut.hpp>
#include <hetsched/planners/baselines/detail/baseline_judge.hpp>
#include <hetsched/planners/baselines/detail/metis_search.hpp>
#include <hetsched/planners/baselines/detail/uniform_grids.hpp>

namespace hetsched {

namespace detail {

/// What search(judge) finds with the tables of these costs.
template <class Search>
[[nodiscard]] outcome<plan> baseline(const std::string& planner, const cluster& hardware, const any_cost_model& costs,
                                     const planning_problem& problem, const baseline_options& options, Search search) {
  validate_iteration(hardware, problem, planner);
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  price_book book(hardware, costs);
  return with_tables(
      book,
      [&](const interop_problem& placed, const stage_prices& table) -> outcome<plan> {
        baseline_judge judge(book, placed, table, problem, options, planner);
        return search(judge);
      },
      problem.poll());
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> uniform_pipelines(const cluster& hardware, const any_cost_model& costs,
                                                const planning_problem& problem, const baseline_options& options) {
  return detail::baseline("uniform", hardware, costs, problem, options, [](detail::baseline_judge& judge) {
    return detail::best_of_grids(judge, detail::subcluster_orders(judge.hardware()), [&](const detail::uniform_grid& g) {
      return detail::equal_cuts(judge.placed().layers, g.stages);
    });
  });
}

HETSCHED_INLINE outcome<plan> amp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                  const baseline_options& options) {
  return detail::baseline("amp", hardware, costs, problem, options, [](detail::baseline_judge& judge) {
    return detail::best_of_grids(judge, detail::subcluster_orders(judge.hardware()),
                                 [&](const detail::uniform_grid& g) { return detail::amp_cuts(judge, g); });
  });
}

HETSCHED_INLINE outcome<plan> equal_pipelines(const cluster& hardware, const any_cost_model& costs,
                                              const planning_problem& problem, const baseline_options& options) {
  auto own = options;
  own.one_order = true;
  return detail::baseline("equal_pipelines", hardware, costs, problem, own, [](detail::baseline_judge& judge) {
    return detail::best_of_grids(
        judge,
        judge.asked().use_all_devices ? detail::subcluster_orders(judge.hardware()) : detail::orders_of_some(judge.hardware()),
        [&](const detail::uniform_grid& g) {
          auto cuts = detail::amp_cuts(judge, g);
          for (auto& equal : detail::equal_cuts(judge.placed().layers, g.stages))
            if (std::find(cuts.begin(), cuts.end(), equal) == cuts.end()) cuts.push_back(std::move(equal));
          return cuts;
        });
  });
}

HETSCHED_INLINE outcome<plan> metis_like(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const baseline_options& options) {
  return detail::baseline("metis_like", hardware, costs, problem, options, detail::metis_search);
}

HETSCHED_INLINE outcome<plan> alpa_like(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                        const baseline_options& options) {
  constexpr int most = 1024;  // devices: its states take some ten megabytes
  return detail::baseline("alpa_like", hardware, costs, problem, options, [](detail::baseline_judge& judge) -> outcome<plan> {
    const int devices = judge.hardware().device_count();
    if (devices > most)
      return refusal{refusal::kind::not_applicable, "alpa_like is for " + std::to_string(most) +
                                                        " devices at most; this cluster has " + std::to_string(devices)};
    return detail::alpa_program(judge).run();
  });
}

}  // namespace hetsched
