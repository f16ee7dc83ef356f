// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/plan/objective.hpp>

using namespace hetsched;

TEST_CASE("plan.objective: every objective is found by its name, and nothing else is") {
  for (const auto o : {plan_objective::iteration, plan_objective::cost, plan_objective::latency, plan_objective::throughput}) {
    CHECK(objective_named(name_of(o)) == o);
    CHECK(is_inference(o) == (o == plan_objective::latency || o == plan_objective::throughput));
  }
  CHECK(name_of(plan_objective::cost) == "cost");
  CHECK_FALSE(objective_named("").has_value());
  CHECK_FALSE(objective_named("Iteration").has_value());
}
