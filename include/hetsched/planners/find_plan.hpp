// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/plan_request.hpp>
#include <hetsched/planners/priced_model.hpp>
#include <hetsched/planners/table.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// The whole way from a cluster, costs and a batch to a plan: the best over microbatch sizes, of one planner of a table, under
/// the schedule that is asked for, for which stages are cut anew where that helps, and with stages of unlike devices if asked.
/// All sizes get a first look, and those whose bound leaves hope a search. A planner that chooses microbatches by itself is left
/// to it. Where no schedule is asked for and the warm-ups are exact, the default planner's plan may run another order of whole
/// backwards (auto, with its actions) that is shorter by 0.5 % or more. Where request.sends hold ranks up, plans are chosen by
/// their iteration with these. For a target, every choice of what its stages must have in common is searched, and the plan is one
/// that it runs as it is (gaps() finds none). Returns: the plan, evaluated, whose evidence is that of all sizes together; the
/// best so far, or that of first_plan if it is better, where go_on ended the search; else why there is none, in the words of the
/// smallest size that has costs: that a search was stopped only if go_on ended it, or if no search of a size came to an end.
/// Throws: input_error for a planner or schedule that is not known, a batch below 1, a microbatch size that does not divide it,
/// an objective that the planner does not know, what does not go with the target (a planner of several pipelines, mixed stages,
/// another schedule, costs of parts of blocks), and as the planner does. Determinism: as the planner's, unless go_on ends it.
/// Example:
///     const auto chain = make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16}));
///     const auto costs = [&](int size) { return analytic_cost_model(hardware, chain, {.microbatch_size = size}); };
///     const auto found = find_plan(hardware, costs, {.global_batch = 256});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request);

/// The same of a model and what it is priced by: what hetsched-plan does with its files. The request is that of request_for, and
/// its planner, unless it names one, default_planner's. Throws: also as costs_on of a priced_model. Example:
///     const priced_model measured{.instead = read_profile("profile.json"), .profile_name = "profile.json"};
///     const auto found = find_plan(hardware, measured, {.global_batch = 256});
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const priced_model& model, const plan_request& request);

/// The same of a transformer, by formulas: a priced_model of these options, cut between blocks where the target does so. Priced
/// by options.stack, also for a target that has another one. Throws: also as training_costs. Example:
///     const auto found = find_plan(hardware, model, {.global_batch = 256}, {.precision = precision::bf16});
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const transformer& model, plan_request request,
                                      const training_cost_options& options = {});

/// The same by a planner of another table; request.planner is not looked at.
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                      const planner_entry& planner);
[[nodiscard]] outcome<plan> find_plan(const cluster& hardware, const priced_model& model, const plan_request& request,
                                      const planner_entry& planner);

/// A request with what the costs tell: arithmetic, flops_per_sample and setting are the model's. Unless the request tells them,
/// so are costs_on and lacks, and the microbatch size is 1 where a profile knows one only. Costs are of the request's batch
/// unless the model's options tell one. Throws: as setting_of.
[[nodiscard]] plan_request request_for(const cluster& hardware, const priced_model& model, plan_request request);

/// The planner for a request that names none: the first of the table. The first one that makes one pipeline, where the target
/// takes no other, and where the costs do not say what several add up; but for these not where money counts, which it does not
/// know. Requires: the table is not empty.
[[nodiscard]] const planner_entry& default_planner(const plan_request& request, const priced_model& model,
                                                   std::span<const planner_entry> table = planners());

/// What is best with some devices less: a plan for what without_devices leaves, told by the whole cluster, whose last devices of
/// that subcluster stand idle, and as evaluate has it there. Its evidence is of the search without the devices. Returns: else why
/// there is none, also where no devices are left. Throws: as without_devices and find_plan. Example:
///     const auto all = find_plan(hardware, model, request);
///     const auto left = find_plan_without(hardware, {.subcluster = 0, .count = 2}, model, request);
///     if (all && left) std::printf("%.1f %% longer\n", 100 * (objective_of(*left) / objective_of(*all) - 1));
[[nodiscard]] outcome<plan> find_plan_without(const cluster& hardware, const lost_devices& lost, const priced_model& model,
                                              const plan_request& request);

/// The same by costs of one's own and a planner of another table. The request is one for the devices that are left.
/// Requires: request.costs_on is given.
[[nodiscard]] outcome<plan> find_plan_without(const cluster& hardware, const lost_devices& lost, const plan_request& request,
                                              const planner_entry& planner);

/// Plans from the fastest to the cheapest of all microbatch sizes together, of which none is both slower and dearer than another;
/// `known`, one that is known already, is among them where it belongs there. Where request.sends hold ranks up, plans take and
/// cost what they do with these (iteration_under), though what is predicted of them is for transfers beside computing. Where the
/// size is asked for, a plan's bound is that of its own deadline, as of time_cost_frontier; else that of `known` if this is the
/// cheapest, which holds for all sizes, or 0.
/// Throws: input_error as time_cost_frontier, for a target, and for a planner without a frontier.
[[nodiscard]] std::vector<plan> find_frontier(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                              const planner_entry& planner, const plan& known);

/// The plan that loses least where each kind of device may be faster or slower than priced by request.device_bias: of the plans
/// that are best in one of the cases (speed_cases), of all that these searches meet, and of neighbours of the best of them, see
/// least_regret_plan. Its evidence is that of the search as priced. find_plan gives the same plan, and this what it is worth.
/// Of the time that request.spent tells, up to 1, each case has an equal share, and so has the search among their plans. A case
/// whose search is not to begin, as there is no time left, does not count.
/// Requires: request.device_bias and request.costs_on are given.
/// Throws: input_error also for an objective other than the iteration.
[[nodiscard]] outcome<unbiased_plan> find_unbiased_plan(const cluster& hardware, const plan_request& request,
                                                        const planner_entry& planner);

/// A plan under another schedule: with its layers or with such as suit schedules that keep more microbatches in flight; or, if
/// `on_any_devices`, one pipeline on any devices that suits these: where they are faster by 0.1 % or more.
/// Returns: the plan, evaluated; a refusal where it takes more memory than there is.
/// Throws: input_error as evaluate.
[[nodiscard]] outcome<plan> plan_under_schedule(const cluster& hardware, const costs_by_size& costs, plan p,
                                                const std::string& schedule, const evaluate_options& options,
                                                bool on_any_devices);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/find_plan.ipp>
#endif
