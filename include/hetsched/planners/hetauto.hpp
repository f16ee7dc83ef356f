// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <cstdint>
#include <string>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/hetauto/options.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>
#include <hetsched/search/tree_search.hpp>

namespace hetsched {

/// Trains on one pipeline through subclusters, by tree search over HetAuto's decisions: whole layers, stages on one subcluster
/// each, those of a subcluster consecutive and with one placement, as far as options.principles ask for it. Candidates that a
/// closed form does not rule out are costed by evaluate under their schedule.
/// Returns: the best plan seen. Where the search saw everything, its evidence has objective_bound equal to objective_value: no
/// plan of this kind is better; else the bound is 0. A refusal if it saw no plan that holds the model.
/// Throws: input_error for options or costs out of range.
/// Complexity: as with_tables; then for each rollout O(layers * stages), and an evaluation where it may be the best.
/// Determinism: equal for every problem.parallel.
/// Source: HetAuto, section 4.1; the microbatches are those of the problem: hetauto_of_batch decides them, too.
/// Example:
///     const auto found = hetauto(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> hetauto(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                    const hetauto_options& options = {});

/// hetauto where the number of microbatches is a decision of the tree, too, as in the paper: behind the number of stages, one of
/// those that cut the batch into equal microbatches. `costs_for(size)`: costs of microbatches of so many samples. The problem's
/// own microbatches count for nothing. Returns, throws, complexity, determinism: as hetauto, with tables for each size. Throws
/// input_error, too, for a batch below 1.
/// Source: HetAuto, section 4.1.
/// Example:
///     const auto found = hetauto_of_batch(hardware, [&](int size) -> const auto& { return costs.at(size); }, 512, {});
[[nodiscard]] outcome<plan> hetauto_of_batch(const cluster& hardware, const costs_by_size& costs_for, int batch,
                                             const planning_problem& problem, const hetauto_options& options = {});

/// The best plan of hetauto's space, with a bound. The search works on
///     sum (t_i + 2 c_i) + (M - 1) * period + end of updates,
/// as interop_dp's: ranges of periods get a bound each, the least latency of all pipelines with one placement in each subcluster
/// at their longest period, which a shortest path finds; evaluate judges the plans met. Small problems are counted.
/// Returns: the plan, as evaluate fills it in, under the schedule of the warm-up rule, with the bound of the search, which means
/// what interop_dp's means; the best so far if problem.progress stopped it; else why there is none. Not applicable to more than
/// ten subclusters, nor where sets of them, transfer classes and layers together are more than four million.
/// Throws: input_error for options or costs out of range.
/// Complexity: at most options.periods paths, of O(2^K L (P S W + C^2)) for K subclusters, L layers, P placements, S stages on a
/// subcluster of W layers, and C transfer classes.
/// Determinism: the plan depends on the arguments only.
/// Source: HetAuto, section 4.1 (the space).
/// Example:
///     const auto found = hetauto_exact(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
[[nodiscard]] outcome<plan> hetauto_exact(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                          const hetauto_exact_options& options = {});
/// The same with the answers of a book, and more where it needs them.
[[nodiscard]] outcome<plan> hetauto_exact(price_book& book, const planning_problem& problem,
                                          const hetauto_exact_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/hetauto.ipp>
#endif
