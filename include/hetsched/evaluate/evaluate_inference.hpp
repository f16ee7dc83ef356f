// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_inference_test.cpp.

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// What a plan of one pipeline for inference is worth: fills in costs, transfers and memory, with microbatches batches of
/// microbatch_size requests in flight, each of which has its cache on every device that it passes. A request's latency is the
/// sum of all stages and transfers; only pieces of its prompt follow each other through the stages. Requests pass at the pace of
/// the slowest stage or transfer, if enough are in flight to keep it busy. Where costs are not inference_costs a request has one
/// token. The way of a token back to the first stage is not counted.
/// Returns: the evaluation, also of a plan that does not fit in memory (`shortage` says so); a refusal where a link is missing.
/// Throws: input_error as evaluate does.
/// Complexity: O(stages * (layers + chunks)).
[[nodiscard]] outcome<evaluation> evaluate_inference(const cluster& hardware, const any_cost_model& costs, plan p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/evaluate_inference.ipp>
#endif
