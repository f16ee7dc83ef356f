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

// What others plan, to see what planning buys: by published rules, on our costs, judged by evaluate. All but equal_pipelines,
// which the search for a target takes, too, use every device of the cluster. Their evidence has no bound. Where the warm-ups of a
// rule take too much memory, 1F1B's are tried.

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
/// Complexity: O(S L^2), and an evaluation, for each choice of degrees whose bound does not rule it out; S stages, L layers.
/// Source: Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022. Not
/// followed: how it deals out unlike nodes; here subclusters are put in order.
[[nodiscard]] outcome<plan> amp(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                const baseline_options& options = {});

/// What trainers of one layout run best: the better of uniform_pipelines' and amp's cuts, on the devices of any of up to four
/// subclusters, unless all are to be used. All pipelines are of one order, that of the most microbatches before the first
/// backward.
/// Returns, throws, complexity, determinism: as amp.
[[nodiscard]] outcome<plan> equal_pipelines(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                            const baseline_options& options = {});

/// As Metis: one pipeline whose stages are groups of devices, of one size in each subcluster, and layers by capability: a stage
/// gets the share of the model that its group has of all groups' speed, less where its memory asks for that. A group takes the
/// fastest of its placements that holds its layers.
/// Returns, throws, determinism: as uniform_pipelines; of sizes of groups in place of degrees.
/// Complexity: O(S P) for each choice of sizes, for S stages with P placements each, and evaluations where there is hope.
/// Source: Um et al., Metis: Fast Automatic Distributed Training on Heterogeneous GPUs, ATC'24. Not followed: groups of unlike
/// sizes in one subcluster, groups over unlike devices with uneven batches, and its way from data to tensor parallelism where
/// memory lacks, in whose place stands the fastest placement that fits.
[[nodiscard]] outcome<plan> metis_like(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                       const baseline_options& options = {});

/// As Alpa, which takes devices for alike: one pipeline, whose stages are submeshes of the cluster, subcluster after subcluster,
/// by a dynamic program over intervals of layers and submeshes. A submesh costs what it costs on the slowest subcluster. Layers
/// are clustered into 32 of about equal cost first. The program knows no transfers between stages, as Alpa's.
/// Returns, throws, determinism: as uniform_pipelines; of the program's best plan that fits. Not applicable to more than 1024
/// devices.
/// Complexity: for each longest stage tried O(S C^2 D W) for C clusters of layers, S <= C stages, D devices and W submeshes.
/// Source: Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI'22. Not
/// followed: its program inside a stage, in whose place stands the fastest placement that fits.
[[nodiscard]] outcome<plan> alpa_like(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                      const baseline_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/baselines.ipp>
#endif
