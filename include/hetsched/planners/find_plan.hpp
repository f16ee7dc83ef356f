// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/plan/plan.hpp>
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
  std::string planner = {};      ///< its name in planners(); empty: the first
  std::string schedule = {};     ///< what the stages run, as build_schedule knows it, or auto; empty: as the planner has it
  planner_choice how = {};       ///< its schedule, known and similar are find_plan's own business
  bool use_all_devices = false;
  bool mixed_stages = false;               ///< stages on unlike devices, too
  precision arithmetic = precision::fp16;  ///< whose peak counts in the prediction's MFU and load balance
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  plan_setting setting = {};               ///< what the costs are of, for the plan to remember
  /// Why there are no costs for a microbatch size; an empty text: there are.
  std::function<std::string(int microbatch_size)> lacks = {};
  std::function<void(const find_progress&)> progress = {};  ///< told now and then
  /// Asked often; false ends the search, which returns the best plan so far: time budgets and cancellation live here.
  std::function<bool()> go_on = {};
  std::function<void(const plan&)> met = {};  ///< told every plan that a search of a microbatch size ends with
  parallel_for parallel = {};                 ///< runs independent parts of a search; the plan does not depend on it
};

/// The whole way from a cluster, costs and a batch to a plan: the best over microbatch sizes, of one planner of a table, under
/// the schedule that is asked for, for which stages are cut anew where that helps, and with stages of unlike devices if asked.
/// All sizes get a first look, and those whose bound leaves hope a search. A planner that chooses microbatches by itself is left
/// to it.
/// Returns: the plan, evaluated, whose evidence is that of all sizes together; the best so far where go_on ended the search; else
/// why there is none, in the words of the smallest size that has costs: that a search was stopped only if go_on ended it, or if
/// no search of a size came to an end. Throws: input_error for a planner or schedule that is not known, a batch below 1, a
/// microbatch size that does not divide it, an objective that the planner does not know, and as the planner does. Determinism: as
/// the planner's, unless go_on ends it. Example:
///     const auto chain = make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16}));
///     const auto costs = [&](int size) { return analytic_cost_model(hardware, chain, {.microbatch_size = size}); };
///     const auto found = find_plan(hardware, costs, {.global_batch = 256});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request);

/// The same of a transformer, by formulas: the request's arithmetic, flops_per_sample and setting are the model's.
/// Throws: also as training_costs.
/// Example:
///     const auto found = find_plan(hardware, model, {.global_batch = 256}, {.precision = precision::bf16});
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const transformer& model, plan_request request,
                                      const training_cost_options& options = {});

/// The same by a planner of another table; request.planner is not looked at.
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                      const planner_entry& planner);

/// What a planner is asked for a microbatch size of a request.
[[nodiscard]] planning_problem problem_of(const plan_request& request, int microbatch_size);

/// Plans from the fastest to the cheapest of all microbatch sizes together, of which none is both slower and dearer than another;
/// `known`, one that is known already, is among them where it belongs there.
/// Requires: planner.frontier. Throws: input_error as time_cost_frontier.
[[nodiscard]] std::vector<plan> find_frontier(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                              const planner_entry& planner, const plan& known);

/// A plan under another schedule: with its layers or with such as suit schedules that keep more microbatches in flight; or, if
/// `on_any_devices`, one pipeline on any devices that suits these: where they are faster by 0.1 % or more.
/// Returns: the plan, evaluated; a refusal where it takes more memory than there is. Throws: input_error as evaluate.
[[nodiscard]] outcome<plan> plan_under_schedule(const cluster& hardware, const costs_by_size& costs, plan p,
                                                const std::string& schedule, const evaluate_options& options,
                                                bool on_any_devices);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/find_plan.ipp>
#endif
