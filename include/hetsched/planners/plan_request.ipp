// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/planners/plan_request.hpp>

namespace hetsched {

HETSCHED_INLINE planning_problem problem_of(const plan_request& request, int microbatch_size) {
  detail::expect_count(microbatch_size, "microbatch_size", 1, std::max(1, request.global_batch));
  planning_problem problem{.microbatches = request.global_batch / microbatch_size, .microbatch_size = microbatch_size};
  problem.objective = request.objective;
  problem.deadline_s = request.deadline_s;
  problem.use_all_devices = request.use_all_devices;
  problem.arithmetic = request.arithmetic;
  problem.flops_per_sample = request.flops_per_sample;
  problem.go_on = request.go_on;
  problem.parallel = request.parallel;
  return problem;
}

}  // namespace hetsched
