// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
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
  double bound = 0;            ///< of what the search goes by, latency and periods say: not of iterations
};

/// What is to be planned for training, for every planner.
struct planning_problem {
  int microbatches = 1;     ///< per iteration, of all pipelines together
  int microbatch_size = 1;  ///< samples per microbatch, as the cost model has it
  bool use_all_devices = false;
  precision arithmetic = precision::fp16;  ///< whose peak counts in the prediction's MFU and load balance
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  plan_objective objective = plan_objective::iteration;
  double deadline_s = infinity;  ///< under cost: no iteration may take longer
  /// An objective that is known already: a search may end once its bound shows that it cannot beat it, or not by more than the
  /// gap that it was asked for.
  double beat = infinity;
  /// A bound on the objective above which nothing is worth proving but that nothing can beat `beat`: other problems that are
  /// looked at together with this one leave no higher one open.
  double enough = infinity;
  /// Called now and then; false stops the search, which returns the best plan so far, or the first one that it finds.
  std::function<bool(const search_progress&)> progress = {};
  /// Asked often, also before there is a plan and on the threads of `parallel`; false ends the search at once, with the best plan
  /// so far, or with a refusal of kind stopped. Time budgets and cancellation live here. Once false, it must stay so.
  std::function<bool()> go_on = {};
  parallel_for parallel = {};  ///< runs independent parts of a search; the plan does not depend on it

  /// go_on, for loops to ask; refers to nothing if there is none. Valid as long as the problem.
  [[nodiscard]] function_ref<bool()> poll() const { return go_on ? function_ref<bool()>(go_on) : function_ref<bool()>(); }
  [[nodiscard]] bool may_go_on() const { return !go_on || go_on(); }
};

/// Throws input_error for counts below 1, a cluster without subclusters or with counts or links out of range, numbers that are
/// none, a deadline that is none or belongs to no objective, and where cost counts and a device has no price.
void validate(const cluster& hardware, const planning_problem& problem);

/// The same for a planner that knows no objective but the iteration.
/// Throws: also where another one is asked for.
void validate_iteration(const cluster& hardware, const planning_problem& problem, std::string_view planner);

/// A function that makes plans from costs: P(cluster, costs, problem, options) -> outcome<plan>. Not checked: that the plan is
/// evaluate's, and that equal questions get equal plans.
template <class P, class Costs, class Options>
concept planner = stage_cost_model<Costs> &&
    requires(P&& make, const cluster& hardware, const Costs& costs, const planning_problem& problem, const Options& options) {
  { make(hardware, costs, problem, options) } -> std::same_as<outcome<plan>>;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/problem.ipp>
#endif
