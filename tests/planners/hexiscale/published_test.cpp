// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/published.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/hexiscale.hpp>

#include "../../sanitizer_share.hpp"
#include "published_plans.hpp"

using namespace hetsched;
using namespace hetsched::hexiscale_paper;

namespace {

/// With its microbatches handed out by the paper's own sum.
plan handed_out(const cluster& hardware, const hexiscale_cost_model& costs, plan p, int microbatches) {
  const auto first = evaluate(hardware, costs, p);
  REQUIRE(first);
  std::vector<line_pace> paces;
  for (const auto& line : first->plan.pipelines) paces.push_back(hexiscale_pace(line));
  const auto counts = hand_out(microbatches, paces);
  for (std::size_t l = 0; l < counts.size(); ++l) p.pipelines[l].microbatches = counts[l];
  const auto judged = evaluate(hardware, costs, p, {.flops_per_sample = 1});
  REQUIRE(judged);
  INFO(judged->shortage);
  CHECK(judged->shortage.empty());
  return judged->plan;
}

}  // namespace

TEST_CASE("HexiScale's own sum, by hand") {
  plan p;
  p.pipelines = {{.microbatches = 4,
                  .stages = {{.layers = {0, 1}, .cost = {1, 2}}, {.layers = {1, 3}, .cost = {1, 1}}},
                  .boundaries = {{.forward_s = 0.5, .backward_s = 0.25}}},
                 {.microbatches = 2, .stages = {{.layers = {0, 3}, .cost = {2, 4}}}}};
  p.gradient_sync = {{.layers = {0, 1}, .seconds = 0.125}, {.layers = {1, 3}, .seconds = 1}};
  CHECK(hexiscale_pace(p.pipelines[0]).latency_s == 5.75);
  CHECK(hexiscale_pace(p.pipelines[0]).period_s == 3.75);
  // 5.75 + 3 * 3.75, and the second pipeline's stage adds up both groups.
  CHECK(hexiscale_iteration_s(p) == 5.75 + 3 * 3.75 + 1.125);
}

TEST_CASE("the plan of Table 2 fits, and ours is better by both sums" * doctest::skip(hetsched::test::sanitizer_share > 1)) {
  const auto hardware = setting_3();
  for (const auto reduction : {hexiscale_reduction::chunks, hexiscale_reduction::all}) {
    const hexiscale_cost_model costs(hardware, llama_30b, {.reduction = reduction});
    const auto theirs = handed_out(hardware, costs, table_2(), 512);
    // No transfer overlaps, nor a reduction: theirs is the longer sum.
    CHECK(hexiscale_iteration_s(theirs) > theirs.predicted.iteration_s);
    const auto ours = hexiscale(hardware, costs, {.microbatches = 512});
    REQUIRE(ours);
    CHECK(ours->predicted.iteration_s < theirs.predicted.iteration_s);
    const auto serial = hexiscale(hardware, costs, {.microbatches = 512}, {.serial_transfers = true});
    REQUIRE(serial);
    CHECK(hexiscale_iteration_s(*serial) < hexiscale_iteration_s(theirs));
    CHECK(serial->evidence->objective_value == hexiscale_iteration_s(*serial));
  }
}

TEST_CASE("case study: asymmetric pipelines take less time than Megatron's") {
  const auto hardware = case_study();
  const hexiscale_cost_model costs(hardware, llama_2_13b);
  const auto megatron = evaluate(hardware, costs, megatron_plan_3());
  REQUIRE(megatron);
  const auto ours = hexiscale(hardware, costs, {.microbatches = 24}, {.serial_transfers = true});
  REQUIRE(ours);
  CHECK(hexiscale_iteration_s(*ours) < hexiscale_iteration_s(megatron->plan));
}
