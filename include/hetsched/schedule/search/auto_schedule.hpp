// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/search/detail/order_problem.hpp>

namespace hetsched {

struct auto_options {
  std::vector<double> memory_capacity = {};  ///< per stage, in the unit of pipeline::activation_bytes; empty: no limits
  double weight_backward_share = 1;  ///< of an activation, what an input gradient leaves in memory for the weight gradient
  bool split_backward = true;        ///< weight gradients may come later than input gradients (needs weight_backward_s)
  /// Tries the interleaved, V-shaped and bidirectional schedules too, as if every stage could be cut into equal parts
  /// (make_workload).
  bool cut_stages = false;
  int rounds = 0;  ///< of local search, all starts together; 0: 100, more for small pipelines
  /// Called with the best makespan so far and its lower bound, in seconds, before each round of local search; false ends it.
  function_ref<bool(double best_s, double bound_s)> progress = {};
};

/// A schedule with one rank per stage, and how good it is.
struct auto_result {
  schedule order;
  double makespan_s = 0;
  double lower_bound_s = 0;         ///< no order of these actions on these ranks that fits in memory ends earlier
  std::vector<double> peak_memory;  ///< per stage
  /// How much longer than the best order the schedule can be, as a share.
  [[nodiscard]] double gap() const { return lower_bound_s > 0 ? makespan_s / lower_bound_s - 1 : 0; }
};

namespace detail {

[[nodiscard]] order_problem make_order_problem(const pipeline& p, int microbatches, const auto_options& options);

[[nodiscard]] bool splits_backwards(const schedule& order);

}  // namespace detail

/// A good order of forwards, input gradients and weight gradients for unequal stages, slow links and limited memory: the best
/// of list schedules under several rules and of the builders that fit in memory, then local search on its critical path
/// (several starts for small pipelines). The rules of 1F1B, H-1F1B and zero-bubble schedules are special cases.
/// Returns: a schedule never worse than those builders; a refusal if a stage's memory does not hold a single activation.
/// Throws: input_error for an invalid pipeline or options.
/// Complexity: for S stages and M microbatches, O(S M log S) per list schedule, O(S M) per round of local search.
/// Determinism: the same on every machine.
[[nodiscard]] outcome<auto_result> auto_schedule(const pipeline& p, int microbatches, const auto_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/search/auto_schedule.ipp>
#endif
