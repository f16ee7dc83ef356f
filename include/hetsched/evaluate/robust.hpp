// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// What a plan is to be good at, where ranks and links vary from iteration to iteration.
struct robust_options {
  double share = 0.9;   ///< of iterations that are to be as short as possible: the quantile
  double spread = 0.1;  ///< as jitter_options have it
  int samples = 200;
  std::uint64_t seed = 1;
  evaluate_options how = {};
  /// Called before each plan is looked at, with how many have been and the best quantile; false ends the search.
  std::function<bool(int plans, double best_s)> go_on = {};
};

/// A plan chosen by a quantile of its iterations.
struct robust_plan {
  hetsched::plan plan;    ///< evaluated; its prediction is the iteration without noise
  double quantile_s = 0;  ///< of noise that the search has not seen, four times as many samples
  double fastest_s = 0;   ///< the same of the plan with the shortest iteration that the search began with
  double searched_s = 0;  ///< the least quantile that the search saw; too good by what suits its noise by chance
  int plans = 0;          ///< looked at
};

/// Iterations of an evaluated plan in which every rank, its update included, and every wire is faster or slower by a random
/// factor, which it keeps through the iteration; in seconds, one per sample, in the order in which they were drawn. Reductions
/// between pipelines take their time. Throws: input_error for a plan that was not evaluated, and a spread or samples below 0.
/// Complexity: samples times simulate. Determinism: as makespans_under_jitter.
[[nodiscard]] std::vector<double> iterations_under_jitter(const plan& p, double spread, int samples, std::uint64_t seed = 1);

/// The plan whose quantile of noisy iterations is least that a local search finds: it begins with the best of some plans, and
/// moves single layers between neighbouring stages, raises and lowers warm-ups, and moves microbatches between pipelines as long
/// as that helps, within memory. All plans of a shape get the same noise. What fits that noise by chance is no gain: other noise
/// then judges between the plan that was found, the best one that it began with, and the one with the shortest iteration. The
/// evidence of a plan that has changed tells its iteration and the bound as before, as no longer complete.
/// Returns: the refusal of the first plan if none of them can be evaluated and fits.
/// Throws: input_error for no plans, a share outside of (0, 1], a spread below 0 and no samples; and as evaluate.
/// Complexity: (plans looked at) * (evaluate + up to `samples` times simulate). Determinism: by the arguments, unless go_on ends
/// it.
[[nodiscard]] outcome<robust_plan> most_robust_plan(const cluster& hardware, const costs_by_size& costs_for,
                                                    std::vector<plan> plans, const robust_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/robust.ipp>
#endif
