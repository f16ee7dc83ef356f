// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.
// Tested by tests/planners/what_if_test.cpp.

#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/planners/plan_request.hpp>

namespace hetsched::detail {

// How the trainer sends, whatever the plan is chosen by.
[[nodiscard]] inline send_mode trainer_sends(const plan_request& request) {
  const auto& stack = request.setting.stack;
  return request.sends.value_or(stack ? stack->sends : send_mode::asynchronous);
}

// The same as far as plans are chosen by it.
[[nodiscard]] inline send_mode sends_of(const plan_request& request) {
  return is_inference(request.objective) || request.how.published ? send_mode::asynchronous : trainer_sends(request);
}

// The iteration of a plan with its sends; infinity if it cannot be evaluated.
[[nodiscard]] inline double sent_s(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                   const plan& p, send_mode sends) {
  const auto judged = evaluate(hardware, costs, p, {.epsilon = request.how.epsilon});
  return judged ? iteration_under(*judged, sends_under(p, sends)) : infinity;
}

}  // namespace hetsched::detail
