// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// What a plan is worth, whoever made it: asks the costs of its stages, boundaries and reductions, plays every pipeline under its
/// schedule, adds the reduction of gradients between pipelines, and between stages that share parameters, and the stages'
/// updates, and bounds and memory. Every other figure
/// of a plan in the library is this one's. What the plan says already of costs, memory and prediction is overwritten; warm-ups
/// and actions count as they are. `models`: that of each microbatch size of the plan, and of the samples of each part of a stage.
/// Returns: the evaluation, also of a plan that does not fit in memory (`shortage` says so); a refusal where a link is missing,
/// or schedule auto finds no room.
/// Throws: input_error for a plan that does not fit cluster or costs, naming the stage, and where two stages share a device.
/// Complexity: O(stages * microbatches) for the 1F1B family, else that of simulate.
[[nodiscard]] outcome<evaluation> evaluate(const cluster& hardware, const costs_by_size& models, plan p,
                                           const evaluate_options& options = {});

/// The same for a plan of one microbatch size, that of the costs.
/// Throws: input_error also for a stage of several parts (see stage_part), which needs the costs of other sizes.
[[nodiscard]] outcome<evaluation> evaluate(const cluster& hardware, const any_cost_model& costs, plan p,
                                           const evaluate_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/evaluate.ipp>
#endif
