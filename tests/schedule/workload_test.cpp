// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/workload.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>

using namespace hetsched;

namespace {

const pipeline four{{1, 2, 3, 4}, {2, 4, 6, 8}, {0.5, 0.25, 0.125}, {1, 2, 3}, {1, 2, 3, 4}, {10, 20, 30, 40}};

const hop& leg(const workload& w, int direction, int boundary) { return w.activation(direction, boundary).network; }

}  // namespace

TEST_CASE("one stage per rank: the pipeline's times, one wire per direction of a link") {
  const auto w = make_workload(four, make_schedule(4, 8, {0, 1, 2, 3}));
  CHECK(w.ranks == 4);
  CHECK(w.stages == 4);
  CHECK(w.directions == 1);
  CHECK(w.work.size() == 4);
  CHECK(w.at(0, 2).forward_s == 3);
  CHECK(w.at(0, 2).backward_s == 6);
  CHECK(w.at(0, 2).weight_backward_s == 3);
  CHECK(w.at(0, 2).activation_bytes == 30);
  CHECK(w.at(0, 2).weight_backward_bytes == 30);
  CHECK(w.wires.size() == 6);
  CHECK(leg(w, 0, 1).occupied_s == 0.25);
  CHECK(w.gradient(0, 1).network.occupied_s == 2);
  CHECK(w.wires[static_cast<std::size_t>(leg(w, 0, 1).wires[0])].name == "rank 1 to 2");
  CHECK(w.wires[static_cast<std::size_t>(w.gradient(0, 1).network.wires[0])].name == "rank 2 to 1");
  CHECK_FALSE(w.activation(0, 0).staged);
  CHECK_NOTHROW(validate(w));
}

TEST_CASE("two chunks per rank share its times; the way back to the first rank costs the slowest link") {
  const auto w = make_workload(four, make_schedule(4, 8, {0, 1, 2, 3, 0, 1, 2, 3}));
  CHECK(w.stages == 8);
  CHECK(w.at(0, 1).forward_s == 1);
  CHECK(w.at(0, 5).forward_s == 1);
  CHECK(w.at(0, 5).weight_backward_s == 1);
  CHECK(w.at(0, 5).activation_bytes == 10);
  CHECK(leg(w, 0, 3).occupied_s == 3);
  CHECK(leg(w, 0, 4).wires == leg(w, 0, 0).wires);  // the same link
  CHECK(w.wires.size() == 8);
}

TEST_CASE("a transfer leaves its wire before it arrives where it occupies it for less than all its time") {
  auto p = four;
  p.transfer_occupied_s = p.transfer_s;
  p.transfer_occupied_s[0] /= 4;
  p.gradient_transfer_occupied_s = {0, 0.5, 1};
  const auto w = make_workload(p, make_schedule(4, 8, {0, 1, 2, 3, 0, 1, 2, 3}));
  CHECK(leg(w, 0, 0).occupied_s == four.transfer_s[0] / 4);
  CHECK(leg(w, 0, 0).latency_s == four.transfer_s[0] * 3 / 4);
  CHECK(leg(w, 0, 1).latency_s == 0);
  CHECK(w.gradient(0, 1).network.occupied_s == 0.5);
  CHECK(w.gradient(0, 1).network.latency_s == 1.5);
  // Those that are no neighbours: the longest of either number.
  CHECK(leg(w, 0, 3).occupied_s == 1);
  CHECK(leg(w, 0, 3).latency_s == 2);
}

TEST_CASE("a V: its turning point stays on the last rank") {
  const auto w = make_workload(four, make_schedule(4, 8, {0, 1, 2, 3, 3, 2, 1, 0}));
  CHECK(leg(w, 0, 3) == hop{});
  CHECK(leg(w, 0, 4).occupied_s == 3);  // an activation that goes up the link between ranks 3 and 2 takes that way's time
  CHECK(leg(w, 0, 4).wires == w.gradient(0, 2).network.wires);
  CHECK(w.wires.size() == 6);
}

TEST_CASE("two directions: a rank does for a microbatch of either what its stage does") {
  const auto w = make_workload(four, make_schedule(4, 8, {0, 1, 2, 3, 3, 2, 1, 0}, 2));
  CHECK(w.directions == 2);
  CHECK(w.stages == 4);
  CHECK(w.at(0, 0).forward_s == 1);
  CHECK(w.at(1, 0).forward_s == 4);
  CHECK(w.at(1, 3).forward_s == 1);
  CHECK(leg(w, 1, 0).wires == w.gradient(0, 2).network.wires);
  CHECK(leg(w, 1, 0).occupied_s == 3);
}

TEST_CASE("defaults: no weight gradients apart, one unit of memory per microbatch and rank") {
  const auto w = make_workload({{1, 1}, {2, 2}, {0}, {}}, make_schedule(2, 3, {0, 1, 0, 1}));
  CHECK(w.at(0, 3).weight_backward_s == 0);
  CHECK(w.at(0, 3).activation_bytes == 0.5);
}

TEST_CASE("what does not fit is refused") {
  CHECK_THROWS_AS((void)make_workload(four, make_schedule(3, 8, {0, 1, 2})), input_error);
  CHECK_THROWS_AS((void)make_workload({}, make_schedule(1, 1, {0})), input_error);
  CHECK_THROWS_AS((void)make_workload(four, make_schedule(4, 8, {0, 1, 2, 4})), input_error);
  CHECK_THROWS_AS((void)make_workload(four, schedule{.ranks = 4, .stages = 4, .microbatches = 1, .rank_of = {}, .lanes = {}}),
                  input_error);

  const auto good = make_workload(four, make_schedule(4, 8, {0, 1, 2, 3}));
  const auto refused = [&](auto change, const char* why) {
    auto w = good;
    change(w);
    CHECK_THROWS_WITH_AS(validate(w), doctest::Contains(why), input_error);
  };
  refused([](workload& w) { w.ranks = 0; }, "at least one rank");
  refused([](workload& w) { w.work.pop_back(); }, "work for every stage");
  refused([](workload& w) { w.activations.pop_back(); }, "paths both ways");
  refused([](workload& w) { w.gradients.push_back({}); }, "paths both ways");
  refused([](workload& w) { w.memory_capacity = {1}; }, "memory_capacity");
  refused([](workload& w) { w.work[0].forward_s = -1; }, "forward_s of a workload");
  refused([](workload& w) { w.work[3].backward_s = std::numeric_limits<double>::quiet_NaN(); }, "backward_s");
  refused([](workload& w) { w.work[1].weight_backward_s = 5; }, "backward_s less weight_backward_s");
  refused([](workload& w) { w.activations[2].h2d.latency_s = std::numeric_limits<double>::infinity(); }, "latency_s");
  refused([](workload& w) { w.gradients[2].network.occupied_s = -1; }, "occupied_s");
  refused([](workload& w) { w.gradients[2].network.wires[2] = 6; }, "takes wire 6 of 6");
  refused([](workload& w) { w.gradients[2].network.wires[2] = -2; }, "takes wire -2");
  refused([](workload& w) { w.wires[1].capacity = 0; }, "wire 'rank 1 to 0' has no room");
  refused([](workload& w) { w.fused_factor = -1; }, "fused_factor");
}
