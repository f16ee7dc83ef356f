// SPDX-License-Identifier: Apache-2.0
// There is one prediction: what the planner says of its plan is what evaluate says of it, before and after a file.
#include <string>

#include <doctest/doctest.h>

#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "random_instance.hpp"

using namespace hetsched;
using hetsched::test::sanitizer_share;

TEST_CASE("planner, plan.json and evaluate say the same seconds and bytes of 200 random plans, and all of them fit") {
  random_source random(20260311);
  int planned = 0;
  for (int round = 0; planned < 200 / sanitizer_share; ++round) {
    REQUIRE(round < 2000);
    auto given = test::random_instance(random);
    test::enrich(given, random);
    given.problem.flops_per_sample = 1e12;
    given.options.warmup = static_cast<warmup_rule>(round % 4);
    const test::additive_costs costs{given.costs};
    const auto found = interop_dp(given.hardware, costs, given.problem, given.options);
    if (!found) continue;
    ++planned;
    CAPTURE(round);
    INFO(test::text(given));
    const auto file = parse_plan(to_json(*found, given.hardware), "plan.json");
    CHECK(file.plan == *found);
    const evaluate_options how{
        .flops_per_sample = 1e12, .arithmetic = given.problem.arithmetic, .epsilon = given.options.epsilon};
    const auto judged = evaluate(given.hardware, costs, plan_on(file, given.hardware, "plan.json"), how);
    REQUIRE(judged);
    CHECK(judged->plan == *found);
    CHECK(judged->shortage.empty());
    for (const auto& s : found->pipelines.front().stages) {
      CHECK(s.memory_bytes <= s.memory_capacity_bytes);
      CHECK(memory_of(s.cost, s.overheads, std::min(s.warmup, given.problem.microbatches)).total() == s.memory_bytes);
    }
    CHECK(found->predicted.lower_bound_s <= found->predicted.iteration_s);
    const auto figures = prediction_figures(found->predicted);
    CHECK(figures.front().value == format_seconds(judged->plan.predicted.iteration_s));
  }
}
