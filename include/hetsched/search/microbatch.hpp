// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// A microbatch size that a plan is wanted for.
struct size_request {
  int microbatch_size = 1;
  int microbatches = 1;
  bool first_plan = false;     ///< any plan will do, soon
  double beat = infinity;      ///< the least objective known, of any size
  double enough = infinity;    ///< a bound that other sizes, searched to the end, do not exceed together
  const plan* best = nullptr;  ///< the best plan so far, of any size; null before there is one
};

/// The sizes of equal microbatches that a batch can be cut into: its divisors, from 1 up. O(sqrt batch).
/// Requires: a batch of 1 or more.
[[nodiscard]] std::vector<int> microbatch_sizes(int global_batch);

/// The stages of a plan with microbatches of another size: each pipeline keeps its share of the batch, in whole microbatches, and
/// those that would keep none are left out. What evaluate fills in is left to it: warm-ups, boundaries, reductions, actions.
/// Returns: none if the size does not divide the batch, or the data degree of a stage does not divide the size.
/// Requires: pipelines of one microbatch size. O(stages + pipelines^2).
[[nodiscard]] std::optional<std::vector<pipeline_plan>> with_microbatch_size(const plan& p, int size);

/// The plan of the least objective among the microbatch sizes that divide the global batch. `plan_for(size_request)` returns an
/// outcome<plan>: it is called for a first plan of every size, and again where that one's evidence is not complete and its
/// bound leaves hope: sizes of good first plans first, then, from the smallest on, those whose first plan is more than twice
/// its bound. `go_on()`, if given, is asked before each call but the first ones until there is a plan; false ends the search,
/// as does a refusal of kind stopped. The evidence's bound is the least of all sizes; it is complete if the search of every
/// size was, or showed that the size cannot win. `bound_of(size)`, if given, is a lower bound on the objective of a size, known
/// without a search; 0 says nothing. Sizes whose first plans take at most `alike` times the best one are searched from the
/// smallest on. Returns: the plan, the smaller size of equals, or the refusal of the first size. Throws: input_error for a
/// batch below 1.
[[nodiscard]] outcome<plan> best_microbatch_size(int global_batch,
                                                 const std::function<outcome<plan>(const size_request&)>& plan_for,
                                                 const std::function<bool()>& go_on = {},
                                                 const std::function<double(int)>& bound_of = {}, double alike = 1);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/microbatch.ipp>
#endif
