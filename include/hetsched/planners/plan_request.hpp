// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/send_mode.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/planners/table.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Where find_plan stands.
struct find_progress {
  search_progress search = {};
  int microbatch_size = 0;         ///< that is looked at; 0: the planner chooses among all
  std::string_view schedule = {};  ///< that is searched for on the stages that were planned; empty: stages are
  double before = infinity;        ///< objective of the best plan of the sizes before
};

/// What find_plan is asked for.
struct plan_request {
  int global_batch = 1;     ///< samples per iteration
  int microbatch_size = 0;  ///< samples, a divisor of the batch; 0: the best of them all
  plan_objective objective = plan_objective::iteration;
  double deadline_s = infinity;  ///< under cost: no iteration may take longer
  std::string planner = {};      ///< its name in planners_and_baselines(); empty: the first
  std::string schedule = {};     ///< what the stages run, as build_schedule knows it, or auto; empty: as the planner has it
  planner_choice how = {};       ///< its schedule, known and similar are find_plan's own business
  /// Share by which each kind of device may be faster or slower than priced, for the plan that loses least then; 0: as priced.
  double device_bias = 0;
  /// With device_bias: the costs where devices have another speed. Given by find_plan of a transformer.
  costs_on_cluster costs_on = {};
  /// How ranks of the trainer send; none: as the stack of the setting, asynchronously without one. Where that holds ranks up
  /// (sends_under), the plan is the one whose iteration with these sends is shortest, or which costs least and is in time with
  /// them, of those that the search meets, for the first planner also of those that others find, and, for it and planners of one
  /// pipeline, of neighbours of the best of them. Stages are planned for transfers beside computing, and published searches stay
  /// as they are.
  std::optional<send_mode> sends = {};
  bool use_all_devices = false;
  bool mixed_stages = false;               ///< stages on unlike devices, too
  precision arithmetic = precision::fp16;  ///< whose peak counts in the prediction's MFU and load balance
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  plan_setting setting = {};               ///< what the costs are of, for the plan to remember
  std::optional<plan_target> target = {};  ///< that is to run the plan; none: whatever plans can say
  /// Why there are no costs for a microbatch size; an empty text: there are.
  std::function<std::string(int microbatch_size)> lacks = {};
  std::function<void(const find_progress&)> progress = {};  ///< told now and then
  /// Asked often, also before there is a plan and on the threads of `parallel`; false ends the search at once, with the best plan
  /// so far or first_plan's, if that is better: time budgets and cancellation live here. Once false, it must stay so.
  std::function<bool()> go_on = {};
  /// The share of a time budget that is spent, where go_on keeps one: 0 at first, 1 where go_on ends the search, and more while
  /// sends_go_on holds; asked often. On 2 to 1,024 devices the default planner then begins with turns of other planners, each
  /// for its share of the budget; what is searched for sends has shares past 1; and the plan depends on this function.
  std::function<double()> spent = {};
  /// Asked often where go_on has ended a search that has no plan, and first_plan finds none on a part of the cluster: whether to
  /// wait for the first plan that the planner finds on all of it. Not given: only for small clusters.
  std::function<bool()> wait_for_first = {};
  /// Asked in place of go_on while plans are looked at for their sends, with how many have been and the least iteration.
  std::function<bool(int plans, double best_s)> sends_go_on = {};
  /// Told every plan that a search of a microbatch size ends with, of the turns, and that first_plan looks at.
  std::function<void(const plan&)> met = {};
  parallel_for parallel = {};  ///< runs independent parts of a search; the plan does not depend on it
};

/// What a planner is asked for a microbatch size of a request. Throws: input_error unless it is 1 to the batch.
[[nodiscard]] planning_problem problem_of(const plan_request& request, int microbatch_size);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/plan_request.ipp>
#endif
