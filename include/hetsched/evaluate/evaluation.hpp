// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <string>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

struct evaluate_options {
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  precision arithmetic = precision::fp16;  ///< whose peaks count in MFU and load balance
  double epsilon = default_epsilon;        ///< of H-1F1B, where a plan names it without warm-ups
  /// While schedule auto is searched for: called with the best makespan so far and its bound, in seconds; false ends the search.
  function_ref<bool(double best_s, double bound_s)> progress = {};
};

/// What a stage of a plan holds and when it is done.
struct stage_evaluation {
  memory_use memory{};
  double in_flight = 0;  ///< most microbatches held at once
  double end_s = 0;      ///< of its last computation; reduction and update follow
};

/// The stages of a pipeline under its schedule.
struct pipeline_evaluation {
  std::vector<stage_evaluation> stages;
};

/// What a plan is worth.
struct evaluation {
  hetsched::plan plan;  ///< complete: costs, transfers, memory, warm-ups, reductions, prediction
  std::vector<pipeline_evaluation> pipelines;
  std::string shortage;  ///< the stage that lacks most memory, as a sentence; empty: all fit
};

}  // namespace hetsched
