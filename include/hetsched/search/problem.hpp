// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Calls body(0) ... body(count - 1), in any order and on any threads, and returns when all are done.
using parallel_for = std::function<void(int count, const std::function<void(int)>& body)>;

/// Where a search stands.
struct search_progress {
  std::int64_t steps = 0;      ///< done so far; of what, is the planner's business
  std::string_view unit = "";  ///< what a step is, in the plural
  double incumbent = 0;        ///< objective of the best plan so far; infinity before there is one
  double bound = 0;            ///< no plan has a smaller objective
};

/// What is to be planned, for every planner.
struct planning_problem {
  int microbatches = 1;     ///< per iteration, of all pipelines together; of inference: batches of requests in flight
  int microbatch_size = 1;  ///< samples per microbatch, as the cost model has it
  bool use_all_devices = false;
  precision arithmetic = precision::fp16;  ///< whose peak counts in the prediction's MFU and load balance
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  plan_objective objective = plan_objective::iteration;
  double deadline_s = std::numeric_limits<double>::infinity();  ///< under cost: no iteration may take longer
  /// An objective that is known already: a search may end once its bound shows that it cannot beat it, or not by more than the
  /// gap that it was asked for.
  double beat = std::numeric_limits<double>::infinity();
  /// Called now and then; false stops the search, which returns the best plan so far. Time budgets and cancellation live here.
  std::function<bool(const search_progress&)> progress = {};
  parallel_for parallel = {};  ///< runs independent parts of a search; the plan does not depend on it
};

/// Throws input_error for counts below 1, a cluster without subclusters, a deadline that is none or belongs to no objective, and
/// where cost counts and a device has no price.
inline void validate(const cluster& hardware, const planning_problem& problem) {
  if (problem.microbatches < 1 || problem.microbatch_size < 1)
    throw input_error("microbatches and microbatch_size must be at least 1");
  if (hardware.subclusters.empty()) throw input_error("a cluster needs at least one subcluster");
  if (!(problem.deadline_s > 0)) throw input_error("a deadline must be above 0");
  if (is_inference(problem.objective))
    throw input_error("objective " + std::string(name_of(problem.objective)) +
                      " is one of inference, which the planner placement knows");
  if (problem.objective == plan_objective::cost) {
    for (const auto& s : hardware.subclusters)
      if (!s.device.price_per_hour)
        throw input_error("objective cost: device " + s.device.name + " of subcluster " + s.name + " has no price_per_hour");
  } else if (problem.deadline_s < std::numeric_limits<double>::infinity()) {
    throw input_error("a deadline needs the objective cost");
  }
}

/// The same for a planner that knows no objective but the iteration. Throws: also where another one is asked for.
inline void validate_iteration(const cluster& hardware, const planning_problem& problem, std::string_view planner) {
  validate(hardware, problem);
  if (problem.objective != plan_objective::iteration)
    throw input_error(std::string(planner) + " plans for the iteration only, not for " + std::string(name_of(problem.objective)));
}

/// A function that makes plans from costs: P(cluster, costs, problem, options) -> outcome<plan>. Not checked: that the plan is
/// evaluate's, and that equal questions get equal plans.
template <class P, class Costs, class Options>
concept planner = stage_cost_model<Costs> &&
    requires(P&& make, const cluster& hardware, const Costs& costs, const planning_problem& problem, const Options& options) {
  { make(hardware, costs, problem, options) } -> std::same_as<outcome<plan>>;
};

}  // namespace hetsched
