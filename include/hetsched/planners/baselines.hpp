// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/baselines/options.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

// What others plan, to see what planning buys: by published rules, on our costs, judged by evaluate. All use every device of the
// cluster. Their evidence has no bound. Where the warm-ups of the rule take too much memory, 1F1B's are tried.

/// As Megatron-LM is run: on all devices, equal degrees everywhere and equal numbers of layers in all stages. Ranks go over the
/// devices in the order of subclusters, tensor ranks next to each other; behind them come either replicas or stages, as with
/// Megatron's two rank orders. Replicas of a stage on devices of one subcluster are a data degree of the stage, others are
/// pipelines of their own. The first and the last layer, embedding and head, are counted among a stage's layers or, as Megatron
/// does, not.
/// Returns: the best plan of all degrees, ways to save memory and, of up to four subclusters, orders of them; the best so far if
/// the search was stopped; else a refusal.
/// Throws: input_error for options or costs out of range.
/// Complexity: an evaluation for each of these plans whose bound does not rule it out.
/// Determinism: the plan depends on the arguments only.
/// Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC'21. Not
/// followed: interleaved stages.
[[nodiscard]] outcome<plan> uniform_pipelines(const cluster& hardware, const any_cost_model& costs,
                                              const planning_problem& problem, const baseline_options& options = {});

/// As AMP: equal degrees everywhere, as uniform_pipelines has them, and for each the layers of stages by a dynamic program of the
/// least
///     sum (t_i + 2 c_i) + (M - 1) * max t_i,
/// where a stage takes as long as its slowest replica. The same cut for all pipelines.
/// Returns, throws, determinism: as uniform_pipelines.
/// Complexity: O(S L^2) for each choice of degrees whose bound does not rule it out, for S stages and L layers, and an
/// evaluation. Source: Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS
/// 2022. Not followed: its placement of unlike nodes into one stage, which here is what orders of subclusters make of it.
[[nodiscard]] outcome<plan> amp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                const baseline_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/baselines.ipp>
#endif
