// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/what_if.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/planners/find_plan.hpp>

using namespace hetsched;

namespace {

/// Two subclusters of 4 devices.
cluster fours(double link_bytes_per_s) {
  cluster c;
  for (const char* name : {"a", "b"}) c.subclusters.push_back({name, *find_device("T4"), 1, 4, {1e-6, 1e9}, {1e-6, 1e9}});
  c.links.push_back({0, 1, {1e-4, link_bytes_per_s}});
  return c;
}

/// A plan that takes so long on the first devices of a subcluster, with proof that none takes less than half a second.
plan taking(double iteration_s, int subcluster, int devices) {
  plan p;
  p.predicted.iteration_s = iteration_s;
  p.evidence = search_evidence{.objective_value = iteration_s, .objective_bound = 0.5, .complete = true};
  p.pipelines.emplace_back().stages.push_back({.devices = {{{.subcluster = subcluster, .devices_per_node = devices}, 0}}});
  return p;
}

double iteration_of(const outcome<plan>& found) { return found->predicted.iteration_s; }

}  // namespace

TEST_CASE("a plan for some devices is one for all of them, and one without work for the lost ones is one for the rest") {
  const auto hardware = fours(1e9);
  const lost_devices losses[] = {{0, 2}, {1, 4}};
  // The plan for all of them is slower than one without two of a, which has no work for b.
  what_if_plans plans{.all = taking(3, 1, 4), .left = {taking(2, 0, 2), taking(2.5, 0, 4)}};
  share_plans(hardware, losses, plans);
  CHECK(plans.all.predicted.iteration_s == 2);
  CHECK(plans.all.evidence->objective_value == 2);
  CHECK(plans.all.evidence->objective_bound == 0.5);
  CHECK_FALSE(plans.all.evidence->complete);
  CHECK(plans.left[0]->evidence->complete);
  CHECK(iteration_of(plans.left[1]) == 2);
  CHECK_FALSE(plans.left[1]->evidence->complete);
  // One that has work for what is lost says nothing of the rest.
  plans = {.all = taking(1, 0, 4), .left = {taking(2, 0, 2), taking(2.5, 0, 4)}};
  share_plans(hardware, losses, plans);
  CHECK(plans.all.evidence->complete);
  CHECK(iteration_of(plans.left[0]) == 2);
  CHECK(iteration_of(plans.left[1]) == 1);
  // By what the caller counts: here, the plan with all devices is the worst one.
  plans = {.all = taking(1, 0, 4), .left = {taking(2, 0, 2), taking(2.5, 0, 4)}};
  share_plans(hardware, losses, plans, [](const plan& p) { return -p.predicted.iteration_s; });
  CHECK(plans.all.predicted.iteration_s == 2.5);
}

TEST_CASE("who loses fewer devices has the plans of who loses more, and where none was found, one that can be there") {
  const auto hardware = fours(1e9);
  const lost_devices losses[] = {{0, 1}, {0, 2}, {0, 4}};
  const refusal late{refusal::kind::stopped, "stopped"};
  what_if_plans plans{.all = taking(1, 0, 4), .left = {taking(4, 0, 3), taking(2, 0, 2), late}};
  share_plans(hardware, losses, plans);
  CHECK(plans.all.predicted.iteration_s == 1);
  CHECK(iteration_of(plans.left[0]) == 2);
  CHECK(iteration_of(plans.left[1]) == 2);
  CHECK_FALSE(plans.left[2]);  // all have work for a's devices
  plans.left[1] = taking(3, 1, 4);
  plans.left[1]->evidence.reset();
  share_plans(hardware, losses, plans);
  REQUIRE(plans.left[2]);
  CHECK(iteration_of(plans.left[2]) == 3);
  CHECK_FALSE(plans.left[2]->evidence);

  plans.left.pop_back();
  CHECK_THROWS_AS(share_plans(hardware, losses, plans), input_error);
  const lost_devices none[] = {{2, 1}};
  plans.left.resize(1, late);
  CHECK_THROWS_AS(share_plans(hardware, none, plans), input_error);
}

TEST_CASE("what-if plans in one call: losing devices gains nothing, of a planner that uses all, too") {
  const auto hardware = fours(1e5);  // to use both subclusters takes very long
  const priced_model model{.model = transformer{.layers = 4, .hidden = 256, .heads = 4, .vocab = 1000, .sequence = 128}};
  const plan_request request{.global_batch = 8, .microbatch_size = 2, .planner = "uniform"};
  const lost_devices losses[] = {{0, 4}, {1, 2}};
  const auto alone = find_plan(hardware, model, request), left = find_plan_without(hardware, losses[0], model, request);
  REQUIRE(alone);
  REQUIRE(left);
  REQUIRE(objective_of(*left) < objective_of(*alone));
  const auto found = find_what_if_plans(hardware, losses, model, request);
  REQUIRE(found);
  CHECK(found->all.pipelines == left->pipelines);
  CHECK(found->left[0]->pipelines == left->pipelines);
  CHECK(objective_of(found->all) <= objective_of(*found->left[1]));
  // The same by iterations with the sends that plans are chosen by.
  auto held_up = request;
  held_up.sends = send_mode::blocking;
  const auto alone_held_up = find_plan(hardware, model, held_up), sent = find_plan_without(hardware, losses[0], model, held_up);
  REQUIRE(alone_held_up);
  REQUIRE(sent);
  REQUIRE(alone_held_up->pipelines != sent->pipelines);
  const auto found_held_up = find_what_if_plans(hardware, losses, model, held_up);
  REQUIRE(found_held_up);
  CHECK(found_held_up->all.pipelines == sent->pipelines);
  CHECK(found_held_up->left[0]->pipelines == sent->pipelines);
  auto all = request;
  all.use_all_devices = true;
  const auto as_asked = find_what_if_plans(hardware, losses, model, all);
  REQUIRE(as_asked);
  CHECK(as_asked->all.pipelines == alone->pipelines);
  const lost_devices wrong[] = {{1, 5}};
  CHECK_THROWS_AS((void)find_what_if_plans(hardware, wrong, model, request), input_error);
}
