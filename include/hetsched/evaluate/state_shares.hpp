// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/stage_parts_test.cpp.

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluate.hpp>

namespace hetsched {

/// Gives the state that ZeRO shares out to where memory has room: in each stage of several parts the data ranks' shares that
/// leave the fullest device as empty as can be. Seconds are as before: the step and its messages are priced as of equal shares.
/// `judged`: what evaluate has said of the plan.
/// Returns: as evaluate, with shares.state set where that helps.
/// Throws: input_error as evaluate.
[[nodiscard]] outcome<evaluation> with_state_by_room(const cluster& hardware, const costs_by_size& costs_for, evaluation judged,
                                                     const evaluate_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/state_shares.ipp>
#endif
