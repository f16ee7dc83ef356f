// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <cstdint>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/hexiscale/options.hpp>
#include <hetsched/planners/hexiscale/partition.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Trains on parallel pipelines that may differ in everything: cuts the graph of the cluster's devices into groups, makes a
/// pipeline of each, and hands out the microbatches so that they end together. For clusters of dozens of different machines.
/// Phase 1 partitions the graph, whose vertices are nodes or pieces of them, over numbers of pipelines, balances, and with the
/// least and the largest cut. Phase 2 cuts each group into sets, puts these in line along wide links, gives every part of a node
/// a stage size, and every stage layers by speed and memory. evaluate judges; then polish_pipelines solves the pipelines of the
/// best plan exactly. Stages lie on single nodes, but where polishing finds better.
/// Returns: the best plan met, as evaluate fills it in, with a bound from the arithmetic alone; the best so far if
/// problem.progress stopped the search; else what is short.
/// Throws: input_error for options or costs out of range.
/// Complexity: for V vertices and D pipelines a partition takes O(V^2 D); a group with P placements O(P L) for each of some
/// hundred trials.
/// Determinism: by the arguments; problem.parallel is not used.
/// Source: HexiScale sec. 4, without its running averages: both directions of the cut are tried each time.
/// Example:
///     const hexiscale_cost_model costs(hardware, {.layers = 60, .hidden = 6656, .sequence = 2048});
///     const auto found = hexiscale(hardware, costs, {.microbatches = 256});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> hexiscale(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                      const hexiscale_options& options = {});
/// The same with the answers of a book, and more where it needs them.
[[nodiscard]] outcome<plan> hexiscale(price_book& book, const planning_problem& problem, const hexiscale_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/hexiscale.ipp>
#endif
