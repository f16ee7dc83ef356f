// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// A pipeline, and what no schedule of it ends before.
struct bounded_pipeline {
  pipeline_plan line;   ///< stages with layers, devices and degrees; the rest is evaluate's
  double bound_s = 0;   ///< of this pipeline
  double lowest_s = 0;  ///< no pipeline has a lesser bound, as far as memory is looked at; 0 if the search was not complete
};

struct any_schedule_options {
  int microbatches = 1;
  double haste = 1;                ///< so many times the microbatches are taken: more makes stages more even
  int in_flight = 1;               ///< microbatches that every stage has to have room for
  double below_s = 0;              ///< only bounds below this; 0: any
  std::int64_t steps = 6'000'000;  ///< at most so many stages are looked at
};

/// The pipeline of the least bound on any schedule that leaves stages and backwards whole: max over stages of (what the first
/// microbatch takes before the stage and back, + M times the stage's time). A stage has all M microbatches to do, and can neither
/// begin before the first has come nor end before the last has gone back; so no order ends sooner, whatever it keeps in flight.
/// Over cuts, devices, degrees and orders of the subclusters, each visited once, by bisection of the bound: for each, a shortest
/// way through stages of which none ends later. What updates and reductions take is left out.
/// Returns: for each of some options that pipeline, or none where there is none, or none with a bound below below_s; a refusal
/// where there are more than 400,000 states to look at, as on hundreds of devices of several kinds.
/// Where go_on, asked now and then, returns false, it ends: with a refusal of kind stopped, or with none for the options that are
/// left.
/// Throws: input_error for options out of range, and as interop_dp.
/// Complexity: the tables of interop_dp; then for each of the options about 20 times O(layers * 2^subclusters * classes of
/// placements * devices * placements * layers of a stage), up to the steps that it may take.
/// Determinism: depends on the arguments only.
/// Source: hetsched, docs/planner.md.
[[nodiscard]] outcome<std::vector<std::optional<bounded_pipeline>>> any_schedule_pipelines(
    price_book& book, std::span<const any_schedule_options> options, function_ref<bool()> go_on = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/any_schedule.ipp>
#endif
