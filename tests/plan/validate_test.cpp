// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/validate.hpp>

#include <doctest/doctest.h>

#include <string>

#include "stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("plans that fit the cluster and the model pass; what does not fit is named with its stage") {
  const auto hardware = two_kinds();  // "slow" 1x4, "fast" 2x2
  auto good = plan_of({line_of({2, 2}, 0, 0, 4, "1f1b"), line_of({1, 3}, 1, 0, 4, "1f1b")});
  good.pipelines[1].stages[1].devices = {{{1, 1, 2}, 2}};
  good.pipelines[1].stages[1].degrees = {1, 1, 2};
  CHECK_NOTHROW(validate(hardware, good, 4));
  // Several groups of devices.
  auto split = good;
  split.pipelines[0].stages[0].devices = {{{0, 1, 1}, 0}, {{0, 1, 1}, 3}};
  split.pipelines[0].stages[0].degrees = {2, 1, 1};
  CHECK_NOTHROW(validate(hardware, split, 4));

  const auto refused = [&](auto change, const std::string& part, int layers = 4) {
    auto p = good;
    change(p);
    CAPTURE(part);
    std::string why;
    try {
      validate(hardware, p, layers);
    } catch (const input_error& e) {
      why = e.what();
    }
    CAPTURE(why);
    CHECK(why.find(part) != std::string::npos);
  };
  refused([](plan& p) { p.pipelines.clear(); }, "at least one pipeline");
  refused([](plan& p) { p.pipelines[1].stages.clear(); }, "pipeline 1: a pipeline needs at least one stage");
  refused([](plan& p) { p.pipelines[0].microbatches = 0; }, "pipeline 0: microbatches and microbatch_size");
  refused([](plan& p) { p.pipelines[0].microbatch_size = 0; }, "pipeline 0: microbatches and microbatch_size");
  refused([](plan& p) { p.pipelines[0].boundaries.resize(2); }, "pipeline 0: boundaries must be one fewer");
  for (const auto part : {&boundary_plan::forward_occupied_s, &boundary_plan::backward_occupied_s})
    for (const double seconds : {-1.0, 3.0})
      refused(
          [&](plan& p) {
            p.pipelines[1].boundaries = {{.forward_s = 2, .backward_s = 2}};
            p.pipelines[1].boundaries[0].*part = seconds;
          },
          "pipeline 1: a transfer occupies its boundary for less than 0 s, or for longer than it takes");
  refused([](plan&) {}, "pipeline 0: its stages end at layer 4, the model at 5", 5);
  const auto stage = [](auto change) { return [change](plan& p) { change(p.pipelines[1].stages[1]); }; };
  refused(stage([](stage_plan& s) { s.layers.first = 2; }),
          "pipeline 1, stage 1: its layers begin at 2, expected at least one layer from 1");
  refused(stage([](stage_plan& s) { s.layers.last = 1; }), "pipeline 1, stage 1: its layers begin at 1");
  refused(stage([](stage_plan& s) { s.devices.clear(); }), "pipeline 1, stage 1: it has no devices");
  refused(stage([](stage_plan& s) { s.degrees.data = 0; }), "degrees must be at least 1");
  refused(stage([](stage_plan& s) { s.degrees.expert = 3; }), "its expert degree of 3 does not divide its data degree");
  refused(stage([](stage_plan& s) { s.degrees.data = 2; }), "data x context x tensor must be its 2 devices");
  refused(stage([](stage_plan& s) { s.zero = 4; }), "the ZeRO stage 0 to 3");
  refused(stage([](stage_plan& s) { s.warmup = -1; }), "a warm-up not negative");
  refused(stage([](stage_plan& s) { s.devices[0].mesh.subcluster = 2; }), "a subcluster that is not there");
  refused(stage([](stage_plan& s) { s.devices[0].mesh.subcluster = -1; }), "a subcluster that is not there");
  refused(stage([](stage_plan& s) { s.devices[0].mesh.devices_per_node = 3; }), "its 1x3 devices from 2 on are not all in fast");
  refused(stage([](stage_plan& s) { s.devices[0].mesh.nodes = 3; }), "its 3x2 devices from 2 on are not all in fast");
  refused(stage([](stage_plan& s) { s.devices[0].first_device = 3; }),
          "its 1x2 devices from 3 on are not all in fast, which has 2x2");
  refused(stage([](stage_plan& s) { s.devices[0].first_device = -1; }), "not all in fast");
  refused(stage([](stage_plan& s) { s.devices[0].first_device = 0; }),
          "pipeline 1, stage 1: device 0 of fast belongs to pipeline 1, stage 0 already");
  // A plan of one pipeline does not count pipelines.
  refused(
      [](plan& p) {
        p.pipelines.pop_back();
        p.pipelines[0].stages[1].devices = p.pipelines[0].stages[0].devices;
      },
      "stage 1: device 0 of slow belongs to stage 0 already");
}
