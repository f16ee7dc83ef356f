// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/polish.hpp>

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>

#include "../../sanitizer_share.hpp"

using namespace hetsched;

namespace {

cluster two_kinds() {
  cluster c{.subclusters = {{"a", catalogue_device("RTX4090"), 3, 4, {1e-5, 32e9}, {5e-5, 2e9}},
                            {"b", catalogue_device("RTX3090"), 1, 8, {1e-5, 24e9}, {}}}};
  connect(c, "a", "b", {5e-5, 1e9});
  return c;
}

stage_plan stage(layer_range layers, int subcluster, int first, int devices) {
  return {.layers = layers,
          .devices = {{{subcluster, 1, devices}, first}},
          .degrees = {1, 1, devices},
          .recompute = recomputation::full};
}

/// Two pipelines with poor cuts, one on a node of 4090s and a pair, one on the rest.
plan poor_plan() {
  plan p{.planner = "by hand"};
  p.pipelines = {
      {.microbatches = 20, .stages = {stage({0, 2}, 0, 0, 4), stage({2, 12}, 0, 4, 2)}, .schedule = {.name = "exact_1f1b"}},
      {.microbatches = 12,
       .stages = {stage({0, 6}, 0, 8, 4), stage({6, 8}, 0, 6, 2), stage({8, 12}, 1, 2, 4)},
       .schedule = {.name = "exact_1f1b"}}};
  return p;
}

}  // namespace

TEST_CASE("the devices of a pipeline, by node") {
  const auto p = poor_plan();
  const pipeline_devices first{{{0, 1, 4}, 0}, {{0, 1, 2}, 4}}, second{{{0, 1, 2}, 6}, {{0, 1, 4}, 8}, {{1, 1, 4}, 2}};
  CHECK(devices_of(two_kinds(), p.pipelines[0]) == first);
  CHECK(devices_of(two_kinds(), p.pipelines[1]) == second);
}

TEST_CASE("some devices make a cluster of their own, and their stages go back where they came from") {
  auto hardware = two_kinds();
  hardware.links[0].bandwidth_back = 5e8;
  hardware.subclusters[0].nics = 3;
  const detail::cut_out part(hardware, {{{0, 1, 2}, 2}, {{0, 1, 4}, 4}, {{0, 1, 4}, 8}, {{1, 1, 3}, 5}});
  REQUIRE(part.hardware.subclusters.size() == 3);
  CHECK(part.hardware.subclusters[1].nodes == 2);
  CHECK(part.hardware.subclusters[2].devices_per_node == 3);
  CHECK(part.hardware.between(0, 1) == hardware.subclusters[0].between_nodes(2));  // a pair has two of its node's ports
  CHECK(part.hardware.between(1, 0) == part.hardware.between(0, 1));
  CHECK(part.hardware.between(0, 2) == hardware.between(0, 1));
  CHECK(part.hardware.between(2, 0) == hardware.between(1, 0));
  CHECK(part.in_whole(device_group{{0, 1, 1}, 1}) == std::vector<device_group>{{{0, 1, 1}, 3}});
  CHECK(part.in_whole(device_group{{1, 2, 4}, 0}) == std::vector<device_group>{{{0, 1, 4}, 4}, {{0, 1, 4}, 8}});
  CHECK(part.in_whole(device_group{{1, 1, 2}, 6}) == std::vector<device_group>{{{0, 1, 2}, 10}});
  CHECK(part.in_whole(device_group{{2, 1, 2}, 1}) == std::vector<device_group>{{{1, 1, 2}, 6}});
  // A pipeline of one part, on another like it.
  const detail::cut_out other(hardware, {{{0, 1, 2}, 0}, {{0, 1, 4}, 8}, {{0, 1, 4}, 4}, {{1, 1, 3}, 0}});
  pipeline_plan line{.stages = {stage({0, 1}, 0, 3, 1), stage({1, 2}, 0, 10, 2), stage({2, 3}, 1, 5, 2)}};
  line = detail::moved(line, part, other);
  CHECK(line.stages[0].devices.front().first_device == 1);
  CHECK(line.stages[1].devices.front().first_device == 6);
  CHECK(line.stages[2].devices.front().first_device == 0);
}

TEST_CASE("polishing makes poor pipelines better on their devices, and hands out the batch anew" *
          doctest::skip(hetsched::test::sanitizer_share > 1)) {
  const auto hardware = two_kinds();
  const hexiscale_cost_model costs(hardware, {.layers = 12, .hidden = 4096, .sequence = 2048});
  const planning_problem problem{.microbatches = 32};
  const auto given = evaluate(hardware, costs, poor_plan());
  REQUIRE(given);
  REQUIRE(given->shortage.empty());
  const auto better = polish_pipelines(hardware, costs, given->plan, problem);
  CHECK(better.planner == "by hand");
  CHECK(better.predicted.iteration_s < 0.8 * given->plan.predicted.iteration_s);
  CHECK(microbatch_count(better) == 32);
  for (const std::size_t l : {0u, 1u})
    for (const auto& s : better.pipelines[l].stages)
      for (const auto& g : s.devices) {
        bool inside = false;
        for (const auto& d : devices_of(hardware, poor_plan().pipelines[l]))
          inside = inside || (d.mesh.subcluster == g.mesh.subcluster && d.first_device <= g.first_device &&
                              g.first_device + g.mesh.device_count() <= d.first_device + d.mesh.device_count());
        CHECK(inside);
      }
  const auto again = evaluate(hardware, costs, better);
  REQUIRE(again);
  CHECK(again->plan.predicted == better.predicted);
  CHECK(polish_pipelines(hardware, costs, better, problem).predicted.iteration_s <= better.predicted.iteration_s);
  // The bound of one pipeline without the other: nothing beats interop_dp on its devices.
  auto alone = poor_plan();
  alone.pipelines.pop_back();
  const auto one = polish_pipelines(hardware, costs, evaluate(hardware, costs, alone)->plan, {.microbatches = 20});
  const detail::cut_out part(hardware, devices_of(hardware, alone.pipelines[0]));
  const auto exact = interop_dp(part.hardware, detail::cut_out_costs{part, costs}, {.microbatches = 20});
  REQUIRE(exact);
  CHECK(one.predicted.iteration_s == doctest::Approx(exact->predicted.iteration_s));
}
