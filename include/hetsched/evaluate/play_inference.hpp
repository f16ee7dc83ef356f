// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/play_inference_test.cpp.

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/inference_plan.hpp>

namespace hetsched {

/// What requests see of a pipeline that serves others, too.
struct played_inference {
  double first_token_s = 0;   ///< from when a request begins, on average
  double token_s = 0;         ///< between two tokens of a request, on average; 0 where it has one
  double requests_per_s = 0;  ///< in the middle of the play, where all in flight are begun
};

/// Plays requests of equal length on a plan for inference, of which as many are in flight at a time as it says: every step of a
/// request, a piece of its prompt or a token, passes stages and links one by one, behind those that came before it; the token
/// goes back to the first stage, and then the next step begins. evaluate_inference's requests_per_s is what no play exceeds;
/// here steps wait for those of other requests.
/// `requests`: batches; requires at least 3 times as many as are in flight.
/// Throws: input_error for a plan without costs or not of this cluster, and for too few or over 1e8
/// requests. Complexity: O(requests * (pieces + tokens) * stages * log(in flight)).
[[nodiscard]] played_inference play_inference(const cluster& hardware, const any_cost_model& costs, const inference_plan& p,
                                              int requests);

/// The same for as many requests as are played in a moment: 20 times those in flight, or fewer, but at least 3 times, where that
/// would be more than a million steps.
[[nodiscard]] played_inference play_inference(const cluster& hardware, const any_cost_model& costs, const inference_plan& p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/play_inference.ipp>
#endif
