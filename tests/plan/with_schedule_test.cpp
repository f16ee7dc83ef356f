// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/with_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/schedule/check.hpp>

using namespace hetsched;

namespace {

cluster two_subclusters() {
  cluster c;
  c.subclusters.push_back({"v100", catalogue_device("V100-SXM2-16GB"), 1, 4, {5e-6, 150e9}, {}});
  c.subclusters.push_back({"a100", catalogue_device("A100-SXM4-40GB"), 1, 2, {5e-6, 300e9}, {}});
  connect(c, "v100", "a100", {1e-4, 2e9});
  return c;
}

analytic_cost_model costs_of(const cluster& c) {
  return {
      c, make_chain(gpt({.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50257, .sequence = 1024}), granularity::block), {}};
}

}  // namespace

TEST_CASE("with_schedule: 1F1B rules give back the planner's own prediction") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::h1f1b, warmup_rule::exact}) {
    const auto planned = interop_dp(hardware, costs, {.microbatches = 32, .warmup = rule});
    REQUIRE(planned);
    REQUIRE(planned->pipelines.front().stages.size() > 2);
    build_options same;
    for (const auto& s : planned->pipelines.front().stages) same.warmups.push_back(s.warmup);
    const auto scheduled = with_schedule(hardware, costs, *planned, schedule_name(rule), same);
    REQUIRE(scheduled);
    const auto &before = *planned, &after = scheduled->plan;
    CHECK(after.predicted.iteration_s == before.predicted.iteration_s);
    CHECK(after.predicted.load_balance == before.predicted.load_balance);
    for (std::size_t i = 0; i < before.pipelines[0].stages.size(); ++i) {
      CHECK(after.pipelines[0].stages[i].warmup == before.pipelines[0].stages[i].warmup);
      CHECK(after.pipelines[0].stages[i].memory_bytes == before.pipelines[0].stages[i].memory_bytes);
    }
  }
}

TEST_CASE("with_schedule: auto is at least as fast as every schedule of one stage per rank that fits, and stays in memory") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  const auto planned = interop_dp(hardware, costs, {.microbatches = 24});
  REQUIRE(planned);
  const auto best = with_schedule(hardware, costs, *planned, "auto");
  REQUIRE(best);
  CHECK(best->plan.schedule == "auto");
  CHECK(check(best->order).empty());
  CHECK(best->plan.predicted.iteration_s >= best->plan.predicted.lower_bound_s);
  CHECK(best->plan.predicted.iteration_s < planned->predicted.iteration_s);
  for (const auto& s : best->plan.pipelines[0].stages) {
    CHECK(s.memory_bytes <= s.memory_capacity_bytes);
    CHECK(s.weight_backward_s > 0);
    CHECK(s.weight_backward_s < s.backward_s);
  }
  int fitting = 0;
  for (const auto name : {"gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b", "zb_h1", "zb_h2"}) {
    const auto other = with_schedule(hardware, costs, *planned, name);
    if (!other) continue;
    ++fitting;
    double slowest_update = 0;
    for (const auto& s : other->plan.pipelines[0].stages) slowest_update = std::max(slowest_update, s.update_s);
    CHECK(best->plan.predicted.iteration_s <= other->plan.predicted.iteration_s + slowest_update);
    CHECK(other->plan.predicted.lower_bound_s <= other->plan.predicted.iteration_s);
  }
  CHECK(fitting >= 4);
}

TEST_CASE("with_schedule: a bidirectional schedule holds the weights of both directions") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  auto planned = interop_dp(hardware, costs, {.microbatches = 16});
  REQUIRE(planned);
  auto& stages = planned->pipelines[0].stages;
  if (stages.size() % 2 == 1) stages.pop_back();
  REQUIRE(stages.size() >= 2);
  for (auto& s : stages) s.memory_capacity_bytes = bytes_t{1} << 50;
  const auto found = with_schedule(hardware, costs, *planned, "chimera");
  REQUIRE(found);
  const auto& after = found->plan.pipelines[0].stages;
  for (std::size_t i = 0; i < after.size(); ++i)
    CHECK(after[i].memory_bytes > after[i].weight_bytes + after[after.size() - 1 - i].weight_bytes);
}

TEST_CASE("with_schedule: what it refuses and what it throws at") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  auto planned = interop_dp(hardware, costs, {.microbatches = 64});
  REQUIRE(planned);
  auto& stages = planned->pipelines[0].stages;
  stages.back().memory_capacity_bytes = cost_of::stage(costs, stages.back().layers, stages.back().where).weight_bytes +
                                        3 * cost_of::stage(costs, stages.back().layers, stages.back().where).activation_bytes;
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) stages[i].memory_capacity_bytes = bytes_t{1} << 50;
  const auto refused = with_schedule(hardware, costs, *planned, "gpipe");
  REQUIRE(!refused);
  CAPTURE(refused.why_not().reason);
  CHECK(refused.why_not().reason.find("schedule gpipe takes ") == 0);
  CHECK(refused.why_not().reason.find(" bytes on stage " + std::to_string(stages.size() - 1)) != std::string::npos);
  stages.back().memory_capacity_bytes = 0;
  CHECK(!with_schedule(hardware, costs, *planned, "auto"));
  CHECK_THROWS_AS((void)with_schedule(hardware, costs, *planned, "2f2b"), input_error);
  planned->pipelines.push_back(planned->pipelines.front());
  CHECK_THROWS_AS((void)with_schedule(hardware, costs, *planned, "auto"), input_error);
}
