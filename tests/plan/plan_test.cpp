// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/plan.hpp>

#include <doctest/doctest.h>

#include <vector>

#include "stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("counts of microbatches and samples over all pipelines") {
  auto p = plan_of({line_of({1}, 0, 0, 6, "1f1b"), line_of({1}, 0, 1, 3, "1f1b")});
  p.pipelines[1].microbatch_size = 4;
  CHECK(microbatch_count(p) == 9);
  CHECK(sample_count(p) == 18);
  p.pipelines[0].microbatch_size = p.pipelines[1].microbatch_size = 1 << 30;
  CHECK(sample_count(p) == 9LL << 30);
  CHECK(microbatch_count({}) == 0);
}

TEST_CASE("the bare times of a pipeline: what no stage tells is left out") {
  auto line = line_of({1, 1, 1}, 0, 0, 4, "1f1b");
  for (auto& s : line.stages) s.cost = {.forward_s = 1, .backward_s = 2};
  line.boundaries = {{.forward_s = 0.25, .backward_s = 0.25}, {.forward_s = 0.5, .backward_s = 0.5}};
  CHECK(to_pipeline(line) == pipeline{{1, 1, 1}, {2, 2, 2}, {0.25, 0.5}});
  line.boundaries[1].backward_s = 1;
  line.stages[1].cost.weight_backward_s = 0.5;
  line.stages[2].cost.activation_bytes = 7;
  CHECK(to_pipeline(line) == pipeline{{1, 1, 1}, {2, 2, 2}, {0.25, 0.5}, {0.25, 1}, {0, 0.5, 0}, {0, 0, 7}});
  line.boundaries[1].forward_occupied_s = 0.125;
  CHECK(to_pipeline(line) ==
        pipeline{{1, 1, 1}, {2, 2, 2}, {0.25, 0.5}, {0.25, 1}, {0, 0.5, 0}, {0, 0, 7}, {0.25, 0.125}, {0.25, 1}});
}

TEST_CASE("placements, boundaries between subclusters, and room for activations") {
  stage_plan s{.layers = {0, 1},
               .devices = {{{1, 1, 2}, 0}, {{1, 1, 2}, 6}},
               .degrees = {4, 1, 1},
               .recompute = recomputation::full,
               .zero = 2};
  CHECK(s.where() == placement{{1, 2, 2}, {4, 1, 1}, recomputation::full, 2});
  s.devices[1].mesh.subcluster = 0;
  CHECK_THROWS_AS((void)s.where(), input_error);

  auto line = line_of({1, 1, 1}, 0, 0, 4, "1f1b");
  line.stages[2].devices[0].mesh.subcluster = 1;
  CHECK(subcluster_boundaries(line) == std::vector{false, true});

  CHECK(activation_rooms(line).empty());
  for (auto& t : line.stages) {
    t.cost = {.weight_bytes = 100, .activation_bytes = 10, .temporary_bytes = 20};
    t.memory_capacity_bytes = 1000;
  }
  line.stages[1].memory_capacity_bytes = 110;
  line.stages[2].overheads = {.runtime_bytes = 96, .fragmentation = 0.5, .margin = 0.25};
  CHECK(activation_rooms(line) == std::vector<double>{880, 0, (1000 / 1.25 - 96 - 4 - 100) / 1.5 - 20});
  // What fills the room fits.
  for (const auto& t : line.stages)
    if (const double room = activation_room(t); room > 0)
      CHECK(memory_of(t.cost, t.overheads, room / 10).total() <= t.memory_capacity_bytes);
  line.stages[1].cost.activation_bytes = 0;
  CHECK(activation_rooms(line).empty());
}

TEST_CASE("the stage that has a layer") {
  const auto line = line_of({2, 1}, 0, 0, 4, "1f1b");
  CHECK(stage_with(line, 0) == 0);
  CHECK(stage_with(line, 1) == 0);
  CHECK(stage_with(line, 2) == 1);
  CHECK_THROWS_WITH_AS((void)stage_with(line, 3), "no stage has layer 3", input_error);
  CHECK_THROWS_AS((void)stage_with(line, -1), input_error);
}
