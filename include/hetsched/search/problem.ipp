// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const cluster& hardware, const planning_problem& problem) {
  if (problem.microbatches < 1 || problem.microbatch_size < 1)
    throw input_error("microbatches and microbatch_size must be at least 1");
  if (hardware.subclusters.empty()) throw input_error("a cluster needs at least one subcluster");
  detail::validate_network(hardware, false);
  if (!(problem.deadline_s > 0)) throw input_error("a deadline must be above 0");
  detail::expect_natural(problem.flops_per_sample, "flops_per_sample");
  if (std::isnan(problem.beat) || std::isnan(problem.enough)) throw input_error("beat and enough must be numbers");
  if (is_inference(problem.objective))
    throw input_error("objective " + std::string(name_of(problem.objective)) +
                      " is one of inference, which place_inference plans");
  if (problem.objective == plan_objective::cost) {
    for (const auto& s : hardware.subclusters)
      if (!s.price_per_hour(1, 1))
        throw input_error("objective cost: device " + s.device.name + " of subcluster " + s.name +
                          " has no price_per_hour, nor its nodes a price_per_node_hour");
  } else if (problem.deadline_s < infinity) {
    throw input_error("a deadline needs the objective cost");
  }
}

HETSCHED_INLINE void validate_iteration(const cluster& hardware, const planning_problem& problem, std::string_view planner) {
  validate(hardware, problem);
  if (problem.objective != plan_objective::iteration)
    throw input_error(std::string(planner) + " plans for the iteration only, not for " + std::string(name_of(problem.objective)));
}

}  // namespace hetsched
