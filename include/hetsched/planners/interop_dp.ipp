// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// The programs do not see what stages take to add up the gradients of parameters that they share: the best plans of single
/// subclusters, where links are fast, may be better than what was found, or there where nothing was.
[[nodiscard]] inline outcome<plan> or_on_one_subcluster(outcome<plan> found, price_book& book, const interop_problem& placed,
                                                        const stage_prices& table, const warmup_algebra& algebra,
                                                        planning_problem asked, interop_options options) {
  const auto& copies = book[placed.placements.front().in_book].copies;
  constexpr std::size_t most = 16;  // subclusters
  const bool hopeless = found ? found->evidence->complete : found.why_not().why != refusal::kind::infeasible;
  if (copies.empty() || asked.use_all_devices || hopeless || placed.devices.size() < 2 || placed.devices.size() > most)
    return found;
  const auto best_s = [&] { return found ? found->predicted.iteration_s : infinity; };
  // What is proved is proved of all subclusters.
  options.prove = options.rows = false;
  options.hope = 1;
  auto told = found ? *found->evidence : search_evidence{};
  const auto on_all = asked.progress;
  const auto go_on = [&](const search_progress& now) {
    return on_all({now.steps, now.unit, best_s(), std::min(told.sum_bound, best_s())});
  };
  if (on_all) asked.progress = go_on;
  const int subclusters = static_cast<int>(book.hardware().subclusters.size());
  for (int k = 0; k < subclusters; ++k) {
    if (on_all && !go_on({k, "subclusters", 0, 0})) break;
    auto own = placed;
    for (auto& p : own.placements)
      if (p.subcluster != k) p.dominated = p.barred = true;
    asked.beat = std::min(asked.beat, best_s());
    auto alone = one_pipeline_search(book.hardware(), book.costs(), own, table, algebra, asked, options);
    if (alone && alone->predicted.iteration_s < best_s()) found = std::move(alone);
  }
  if (!found) return found;
  told.objective_value = best_s();
  told.objective_bound = std::min(told.objective_bound, best_s());
  found->evidence = std::move(told);
  return found;
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> interop_dp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                         const interop_options& options) {
  price_book book(hardware, costs);
  return interop_dp(book, problem, options);
}

HETSCHED_INLINE outcome<plan> interop_dp(price_book& book, const planning_problem& problem, const interop_options& options) {
  const auto& hardware = book.hardware();
  validate_iteration(hardware, problem, "interop_dp");
  detail::expect_natural(options.near_tie, "near_tie");
  detail::expect_natural(options.gap, "gap");
  detail::expect_effort(options.effort, "effort");
  detail::expect_effort(options.enumeration, "enumeration");
  detail::expect_natural(options.known_bound, "known_bound");
  detail::expect_natural(options.hope, "hope");
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) {
        auto own = options;
        // Elsewhere iterations are near sums.
        constexpr double near_sums = 1.1;
        if (book[placed.placements.front().in_book].copies.empty()) own.hope = std::min(own.hope, near_sums);
        auto found = detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, problem, own);
        // Where links are missing, the order that a local search starts with may lead nowhere.
        constexpr std::size_t most_ordered = 8;
        if (!found && found.why_not().why == refusal::kind::infeasible && detail::has_free_order(hardware, options.order) &&
            hardware.subclusters.size() <= most_ordered) {
          auto all = own;
          all.order = subcluster_order::all;
          found = detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, problem, all);
        }
        return detail::or_on_one_subcluster(std::move(found), book, placed, table, algebra, problem, own);
      },
      problem.poll());
}

}  // namespace hetsched
