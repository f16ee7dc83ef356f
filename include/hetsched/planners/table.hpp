// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/hetauto/options.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// What a planner of the table is told beyond the problem; each takes what concerns it.
struct planner_choice {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  bool all_orders = false;           ///< of subclusters, also of more than four
  std::uint64_t seed = 0;
  hetauto_principles principles = {};
  bool published = false;                   ///< hetauto and hexiscale search as their papers do
  std::string schedule = {};                ///< what the stages are to run; empty: the planner's
  int stages = 0;                           ///< of placement; 0: as many as are best
  bool one_order = false;                   ///< the baselines' pipelines of a plan are of one order
  bool splits = false;                      ///< bounds hold for schedules that split backwards, too (the first two planners)
  std::vector<pipeline_plan> known = {};    ///< pipelines that a first look has found
  std::vector<pipeline_plan> similar = {};  ///< those of the best plan of another microbatch size
  double others_s = infinity;               ///< the best iteration of other problems, as of other microbatch sizes
  price_book* prices = nullptr;             ///< of these costs and cluster, to read and add to; none: the planner asks anew
};

/// A planner by its name, and what it is able to do.
struct planner_entry {
  std::string_view name;
  std::string_view what;  ///< in a few words
  outcome<plan> (*make)(const cluster&, const any_cost_model&, const planning_problem&, const planner_choice&);
  /// Plans of time against money, where the planner knows money.
  outcome<std::vector<plan>> (*frontier)(const cluster&, const any_cost_model&, const planning_problem&,
                                         const planner_choice&) = nullptr;
  bool one_pipeline = false;  ///< its plans have one pipeline
  bool slow_start = false;    ///< it takes long to its first plan
  /// A text about how large its space is, where it tells. `operators`: between which the model could be cut.
  std::string (*explain)(const cluster&, const any_cost_model&, const planning_problem&, int operators) = nullptr;
  /// For a whole batch, whose microbatches the planner chooses, where it does.
  outcome<plan> (*of_batch)(const cluster&, const costs_by_size&, int batch, const planning_problem&,
                            const planner_choice&) = nullptr;
  bool equal_pipelines = false;  ///< its plans have several that differ in their devices only
};

/// All planners of the library; the first one is the default, and where one pipeline is asked for the first that makes one.
[[nodiscard]] std::span<const planner_entry> planners();

/// These and, behind them, the baselines (see baselines.hpp), which nobody asks unless by name.
[[nodiscard]] std::span<const planner_entry> planners_and_baselines();

/// The planner of that name in a table. Throws: input_error that names those there are.
[[nodiscard]] const planner_entry& planner_named(std::string_view name,
                                                 std::span<const planner_entry> table = planners_and_baselines());

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/table.ipp>
#endif
