// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <functional>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/send_mode.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/objective.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Seconds of an iteration of an evaluated plan whose ranks send so: sends and receives stand in the order of computing, where
/// add_transfers puts them, and each holds up both of its ranks. Memory is as it was.
/// Throws: input_error for a plan that was not evaluated or was changed since, and for one whose own schedule lists transfers,
/// unless they are to be asynchronous.
/// Complexity: that of simulate, for each pipeline.
[[nodiscard]] double iteration_under(const evaluation& judged, send_mode sends);

/// How ranks send under a plan whose trainer sends so: asynchronously where there is nothing to send, where a rank has several
/// virtual stages, whose transfers are posted ahead (Megatron-LM's overlap_p2p_comm), and where a schedule of the plan's own
/// lists its transfers. Warm-ups are no reason: under virtual_1f1b, too, a trainer sends as it does. Throws: input_error for no
/// way to send.
[[nodiscard]] send_mode sends_under(const plan& p, send_mode trainer);

struct sends_options {
  evaluate_options how = {};
  plan_objective objective = plan_objective::iteration;  ///< that is least: the iteration, or what a sample costs, with the sends
  double deadline_s = infinity;                          ///< no iteration may take longer
  int most_plans = 2000;                                 ///< looked at
  std::function<bool(const plan&)> runs = {};            ///< whether a plan is allowed; not given: all are
  bool rules = true;                                     ///< whether warm-ups of other rules are looked at, too
  /// Called before each plan is looked at once one is in time, with how many have been and the least iteration; false ends it.
  std::function<bool(int plans, double best_s)> go_on = {};
};

/// A plan chosen by its iteration under sends that hold ranks up.
struct sent_plan {
  hetsched::plan plan;     ///< evaluated; its prediction is that of transfers beside computing
  double iteration_s = 0;  ///< with the sends
  double first_s = 0;      ///< the same of the first plan that the search began with
  int plans = 0;           ///< looked at
};

/// The plan whose iteration is shortest, or which costs least, where ranks send as a trainer does (sends_under), of some plans
/// and of what a local search makes of the best of them: the moves are those of most_robust_plan, other rules of warm-ups, other
/// placements of a stage on its devices, and two stages in a row that become one. Setting and evidence are those of the first
/// plan: what bounds iterations with transfers beside computing bounds these, too, as waiting makes none shorter. Where the plan
/// is another one, the evidence tells its iteration. It is complete where the first plan's was, and the iteration with the sends
/// is no longer than that plan's without. Returns: the refusal of the first plan if none of them can be evaluated and fits.
/// Throws: input_error for no plans and no way to send; and as evaluate. Complexity: (plans looked at) * (evaluate + simulate).
/// Determinism: by the arguments, unless go_on ends it.
[[nodiscard]] outcome<sent_plan> fastest_with_sends(const cluster& hardware, const costs_by_size& costs_for,
                                                    std::vector<plan> plans, send_mode trainer,
                                                    const sends_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/sends.ipp>
#endif
