// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// The programs do not see what stages take to add up the gradients of parameters that they share. Where the plan that was found
/// does so between subclusters, or none was found, the best ones of single subclusters may be better.
[[nodiscard]] inline outcome<plan> or_on_one_subcluster(outcome<plan> found, price_book& book, const interop_problem& placed,
                                                        const stage_prices& table, const warmup_algebra& algebra,
                                                        planning_problem asked, const interop_options& options) {
  const auto& copies = book[placed.placements.front().in_book].copies;
  const auto apart = [&](const copy_sync_plan& c) {
    const auto home = [&](int layer) {
      const auto& line = found->pipelines.front();
      return line.stages[stage_with(line, layer)].devices.front().mesh.subcluster;
    };
    return home(c.owner) != home(c.layer);
  };
  const auto is_apart = [&] {
    const auto& syncs = found->pipelines.front().copy_sync;
    return std::any_of(syncs.begin(), syncs.end(), apart);
  };
  if (copies.empty() || asked.use_all_devices || (found ? !is_apart() : found.why_not().why != refusal::kind::infeasible))
    return found;
  const auto best_s = [&] { return found ? found->predicted.iteration_s : infinity; };
  const double bound = found ? found->evidence->objective_bound : 0;
  const bool complete = found && found->evidence->complete;
  const auto on_all = asked.progress;
  const auto go_on = [&](const search_progress& now) {
    return on_all({now.steps, now.unit, best_s(), std::min(bound, best_s())});
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
  found->evidence->objective_value = best_s();
  found->evidence->objective_bound = std::min(bound, best_s());
  found->evidence->complete = complete;
  return found;
}

/// A smaller space may be searched better: where stages may recompute in several ways, also the best plan of each way alone, as
/// far as that takes no time.
[[nodiscard]] inline outcome<plan> or_of_one_recomputation(outcome<plan> found, price_book& book, const interop_problem& placed,
                                                           const stage_prices& table, const warmup_algebra& algebra,
                                                           planning_problem asked, interop_options options) {
  constexpr std::size_t few = 10'000;
  if (!found || placed.placements.size() * as_size(placed.layers) > few || found->evidence->complete) return found;
  std::set<recomputation> ways;
  for (const auto& p : placed.placements) ways.insert(p.where.recompute);
  if (ways.size() < 2) return found;
  options.prove = false;
  if (asked.progress) asked.progress = [](const search_progress&) { return true; };  // told of the whole search only
  const double bound = found->evidence->objective_bound;
  for (const auto way : ways) {
    if (!asked.may_go_on()) break;
    auto own = placed;
    for (auto& p : own.placements)
      if (p.where.recompute != way) p.dominated = p.barred = true;
    asked.beat = std::min(asked.beat, found->predicted.iteration_s);
    auto alone = one_pipeline_search(book.hardware(), book.costs(), own, table, algebra, asked, options);
    if (!alone || !(alone->predicted.iteration_s < found->predicted.iteration_s)) continue;
    auto told = found->evidence;
    found = std::move(alone);
    found->evidence = std::move(told);
  }
  found->evidence->objective_value = found->predicted.iteration_s;
  found->evidence->objective_bound = std::min(bound, found->predicted.iteration_s);
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
  if (!(options.near_tie >= 0 && options.gap >= 0 && options.effort >= 0 && options.enumeration >= 0))
    throw input_error("near_tie, gap, effort and enumeration must not be negative");
  const detail::warmup_algebra algebra(options.warmup, options.epsilon);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& placed, const detail::stage_prices& table) {
        bool stopped = false;
        auto asked = problem;
        if (problem.progress)
          asked.progress = [&](const search_progress& now) {
            const bool goes_on = problem.progress(now);
            stopped = stopped || !goes_on;
            return goes_on;
          };
        auto found = detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, asked, options);
        // Where links are missing, the order that a local search starts with may lead nowhere.
        constexpr std::size_t most_ordered = 8;
        if (!found && found.why_not().why == refusal::kind::infeasible && detail::has_free_order(hardware, options.order) &&
            hardware.subclusters.size() <= most_ordered) {
          auto all = options;
          all.order = subcluster_order::all;
          found = detail::one_pipeline_search(hardware, book.costs(), placed, table, algebra, asked, all);
        }
        found = detail::or_on_one_subcluster(std::move(found), book, placed, table, algebra, asked, options);
        if (stopped) return found;
        return detail::or_of_one_recomputation(std::move(found), book, placed, table, algebra, problem, options);
      },
      problem.poll());
}

}  // namespace hetsched
