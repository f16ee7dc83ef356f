// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_inference_test.cpp.

#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/inference_plan.hpp>

namespace hetsched {

/// What a plan for inference is worth.
struct inference_evaluation {
  inference_plan plan;  ///< complete: costs, transfers, memory, prediction
  std::vector<stage_evaluation> stages;
  std::string shortage;  ///< the stage that lacks most memory, as a sentence; empty: all fit
};

/// What a plan for inference is worth: fills in costs, transfers and memory. Each batch in flight has its cache on every device
/// that it passes. A request's latency is the sum of all stages and transfers; only pieces of its prompt follow each other
/// through the stages. Requests pass at the pace of the slowest stage or transfer, if enough are in flight to keep it busy. Where
/// costs are not inference_costs a request has one token. The way of a token back to the first stage is not counted.
/// Returns: the evaluation, also of a plan that does not fit in memory (`shortage` says so); a refusal where a link is missing.
/// Throws: input_error for a plan that does not fit cluster or costs, as evaluate does.
/// Complexity: O(stages * (layers + chunks)).
[[nodiscard]] outcome<inference_evaluation> evaluate_inference(const cluster& hardware, const any_cost_model& costs,
                                                               inference_plan p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/evaluate_inference.ipp>
#endif
