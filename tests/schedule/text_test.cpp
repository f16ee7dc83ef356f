// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/text.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>

#include "sound_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

std::string error_of(const std::string& text) {
  try {
    (void)parse_schedule_csv(text);
  } catch (const input_error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the names of actions") {
  CHECK(to_text({.kind = forward, .stage = 2, .microbatch = 0}) == "2F0");
  CHECK(to_text({.kind = forward, .direction = 1, .stage = 2, .microbatch = 10}) == "2F10r1");
  const auto text = [](action_kind k) {
    return to_text({.kind = k, .joined = true, .stage = 1, .microbatch = takes_microbatch(k) ? 3 : no_microbatch});
  };
  std::vector<std::string> names;
  for (int k = 0; k < action_kinds; ++k) names.push_back(text(static_cast<action_kind>(k)));
  CHECK(names == std::vector<std::string>{"1F3",
                                          "1B3",
                                          "1I3",
                                          "1W3",
                                          "1R3",
                                          "1SEND_F3",
                                          "1RECV_F3",
                                          "1SEND_B3",
                                          "1RECV_B3",
                                          "1D2H_F3",
                                          "1NET_F3",
                                          "1H2D_F3",
                                          "1D2H_B3",
                                          "1NET_B3",
                                          "1H2D_B3",
                                          "1UNSHARD",
                                          "1RESHARD",
                                          "1REDUCE_SCATTER",
                                          "1REDUCE_GRAD",
                                          "1OPTIMIZER",
                                          "1POST_SEND_F3",
                                          "1POST_RECV_F3",
                                          "1POST_SEND_B3",
                                          "1POST_RECV_B3",
                                          "1POST_REDUCE_GRAD",
                                          "1WAIT_SEND_F3",
                                          "1WAIT_RECV_F3",
                                          "1WAIT_SEND_B3",
                                          "1WAIT_RECV_B3",
                                          "1WAIT_REDUCE_GRAD"});
  CHECK(to_text({.kind = optimizer, .direction = 3, .stage = 0, .microbatch = no_microbatch}) == "0OPTIMIZERr3");
}

TEST_CASE("files as torch.distributed.pipelining writes them") {
  // Two ranks, split backward; idle slots are blank cells, and its writer ends lines in \r\n.
  const auto split = parse_schedule_csv("0F0,0F1,,0I0,0W0,0I1,0W1\r\n,1F0,1I0,1F1,1I1,1W0,1W1\r\n");
  auto expected = make_schedule(2, 2, {0, 1});
  const auto add = [&](std::size_t rank, action_kind kind, int stage, int microbatch) {
    expected.lanes[rank].actions.push_back({kind, false, 0, stage, microbatch});
  };
  add(0, forward, 0, 0), add(0, forward, 0, 1), add(0, backward_input, 0, 0), add(0, backward_weight, 0, 0);
  add(0, backward_input, 0, 1), add(0, backward_weight, 0, 1);
  add(1, forward, 1, 0), add(1, backward_input, 1, 0), add(1, forward, 1, 1), add(1, backward_input, 1, 1);
  add(1, backward_weight, 1, 0), add(1, backward_weight, 1, 1);
  CHECK(split == expected);
  CHECK(to_csv(split) == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");

  // A V with fused events, sharded parameters and transfers.
  const std::string text =
      "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,3RECV_F0,0SEND_F1,3F0,3I0,3SEND_B0,3RECV_F1,(3F1;3W0)OVERLAP_F_B,3B1,3SEND_B1,"
      "3RESHARD,3REDUCE_GRAD,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
      "1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2RECV_B0,2SEND_F1,2B0,1B0,2RECV_B1,2B1,1SEND_B0,1B1,1SEND_B1\n";
  const auto order = parse_schedule_csv(text);
  CHECK(order.ranks == 2);
  CHECK(order.stages == 4);
  CHECK(order.microbatches == 2);
  CHECK(order.directions == 1);
  CHECK(order.rank_of == std::vector<int>{0, 1, 1, 0});
  CHECK(order.lanes[0].actions[0] == action{all_gather, false, 0, 0, no_microbatch});
  CHECK(order.lanes[0].actions[11] == action{forward, false, 0, 3, 1});
  CHECK(order.lanes[0].actions[12] == action{backward_weight, true, 0, 3, 0});
  CHECK(to_csv(order) == text);
  CHECK(check(order).empty());
}

TEST_CASE("what plain files do not have: directions, groups, streams, sizes") {
  const std::string directions = "0F0,1F1r1,1B1r1,0B0\n0F1r1,1F0,1B0,0B1r1\n";
  const auto two_ways = parse_schedule_csv(directions);
  CHECK(two_ways.directions == 2);
  CHECK(two_ways.rank_of == std::vector<int>{0, 1, 1, 0});
  CHECK(to_csv(two_ways) == directions);

  const std::string streams =
      "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n0:receive:1,(0RECV_B0;0RECV_B1)GROUP\n0:d2h,0D2H_F0,0D2H_F1\n0:network:1,0NET_F0,0NET_"
      "F1\n"
      "0:collective\n1:send:0,1SEND_B0,1SEND_B1\n1:h2d,1H2D_F0,1H2D_F1\n";
  const auto lanes = parse_schedule_csv(streams);
  REQUIRE(lanes.lanes.size() == 8);
  CHECK(lanes.ranks == 2);
  CHECK(lanes.lanes[2] == lane{0, stream::receive, 1, {{receive_gradient, false, 0, 0, 0}, {receive_gradient, true, 0, 0, 1}}});
  CHECK(lanes.lanes[5] == lane{0, stream::collective, -1, {}});
  CHECK(to_csv(lanes) == streams);

  // Sizes and a stage map that the rows do not show: an idle rank is a row without cells, a stage without actions needs a header.
  CHECK(parse_schedule_csv("0F0,0B0\n\n").ranks == 2);
  auto empty = make_schedule(2, 5, {0, 1, 0});
  CHECK(to_csv(empty) == "#microbatches:5,replicas:1,placement:0;1;0\n\n\n");
  CHECK(parse_schedule_csv(to_csv(empty)) == empty);
  empty.lanes[1].actions.push_back({forward, false, 0, 1, 4});
  CHECK(parse_schedule_csv(to_csv(empty)) == empty);
}

TEST_CASE("round trips of random schedules, lowered in every way") {
  random_source random(311);
  for (int n = 0; n < 3000 / test::sanitizer_share; ++n) {
    auto order = test::sound_schedule(random, test::random_sound_options(random));
    const auto back = [&] {
      const auto text = to_csv(order);
      CAPTURE(text);
      const auto read = parse_schedule_csv(text);
      REQUIRE(read == order);
      REQUIRE(to_csv(read) == text);
    };
    back();
    const bool lists = std::any_of(order.lanes.begin(), order.lanes.end(), [](const lane& l) {
      return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) { return is_transfer(a.kind); });
    });
    if (!lists) {
      order = stage_transfers(add_transfers(order), [](int from, int to) { return from < to; });
      back();
    }
    order = group_transfers(order);
    back();
    order = split_streams(order);
    back();
    // Also of what is no longer sound.
    for (auto& l : order.lanes)
      while (!l.actions.empty() && random.integer(0, 3) == 0) l.actions.pop_back();
    back();
  }
}

TEST_CASE("errors name row, column, what is there and what should be") {
  CHECK(error_of("") == "a schedule needs at least one row, found an empty text");
  CHECK(error_of("0F0,0B0\n1F0,1X0\n") ==
        "row 2, column 2: found \"1X0\", expected [stage][kind][microbatch] such as 2F0, 1SEND_F3 or 0UNSHARD, numbers in plain "
        "digits and below 2147483647");
  const auto expects = [](const std::string& text, const std::string& words) {
    CAPTURE(text);
    const auto error = error_of(text);
    CAPTURE(error);
    CHECK(error.find(words) != std::string::npos);
  };
  expects("F0", "row 1, column 1: found \"F0\", expected [stage]");
  expects("0F0,-1F0", "row 1, column 2: found \"-1F0\", expected [stage]");
  expects("0F0,0F01", "row 1, column 2: found \"0F01\", expected a microbatch after F");
  expects("00F0", "row 1, column 1: found \"00F0\"");
  expects("0F", "expected a microbatch after F");
  expects("0SEND_F", "expected a microbatch after SEND_F");
  expects("0UNSHARD1", "expected no microbatch after UNSHARD");
  expects("0F0x", "found \"0F0x\", expected the end of the action, or a direction");
  expects("0F0r0", "expected the end of the action, or a direction");
  expects("0F0r40000", "expected the end of the action, or a direction");
  expects("0F0r1r1", "expected the end of the action, or a direction");
  expects("0F0,(0F1;0B0)", "row 1, column 2: found \"(0F1;0B0)\", expected a single action, (action;action)OVERLAP_F_B");
  expects("(0F1;0B0", "expected a single action");
  expects("(0F1)OVERLAP_F_B", "expected at least two actions between the parentheses");
  expects("()GROUP", "expected at least two actions between the parentheses");
  expects("(0F1;0B0)GROUP", "expected GROUP after transfers");
  expects("(0SEND_F0;0SEND_F1)OVERLAP_F_B", "expected GROUP after transfers");
  expects("(0F1;(0B0;0B1)OVERLAP_F_B)OVERLAP_F_B", "row 1, column 1");
  expects("0F0\n0:compute,0F1", "row 2, column 1: found \"0:compute\", expected a lane such as 0:send:1");
  expects("0F0\nx:send:1", "expected the rank of a lane");
  expects("0F0\n0:send:", "expected the rank at the other end of a lane");
  expects("0F0\n0:send:1:2", "expected the rank at the other end of a lane");
  expects("0F0\n0:send:1", "row 2, column 1: found \"0:send:1\", expected a lane of ranks below 1");
  expects("0F0\n0:d2h\n1F0", "row 3, column 1: found \"a row without a label\", expected the rows of ranks before");
  expects("0:d2h,0D2H_F0", "a schedule needs a row per rank");
  expects("0F0,0B0\n0F1\n", "ranks 0 and 1 both compute stage 0 of direction 0");
  expects("0F0,0B0,2F0", "no row computes stage 1");
  expects("0F0,0B0,1F0r1,0F1r1,0F2", "no row computes stage 1");
  expects("#ranks:1\n0F0", "row 1, column 1: found \"ranks:1\", expected microbatches:...");
  expects("#microbatches:1,replicas:1\n0F0", "expected placement:...");
  expects("#microbatches:x,replicas:1,placement:0\n0F0", "expected a number of microbatches from 0 to 16777215");
  expects("#microbatches:1,replicas:0,placement:0\n0F0", "expected at least one direction");
  expects("#microbatches:1,replicas:2,placement:0;0;0\n0F0", "as many ranks for each of 2 directions");
  expects("#microbatches:1,replicas:1,placement:0;1\n0F0", "the placement names rank 1, but the rows are those of 1 ranks");
  expects("#microbatches:1,replicas:1,placement:0\n0F0,0F1",
          "row 2, column 2: found \"0F1\", expected an action of the 1 stages");
  const auto longest = error_of("0F0," + std::string(5000, 'x'));
  CHECK(longest.size() < 250);
}

TEST_CASE("absurd numbers cost neither time nor memory") {
  CHECK(error_of("999999999F0").find("too few for 1000000000 stages") != std::string::npos);
  CHECK(error_of("0F999999999").find("too few for 1000000000 microbatches") != std::string::npos);
  CHECK(error_of("0F2147483646,0B2147483646").find("too few") != std::string::npos);
  CHECK(error_of("99999999999F0").find("row 1, column 1") != std::string::npos);
  CHECK(error_of("0F0r32767").find("too few") != std::string::npos);
  CHECK(error_of("0F99999999999999999999999").find("row 1, column 1") != std::string::npos);
  const auto sparse = parse_schedule_csv("#microbatches:16777215,replicas:1,placement:0;0;0;0;0;0;0;0\n0F0\n");
  REQUIRE(check(sparse).size() == 1);
  CHECK(check(sparse)[0] == "the schedule lists 1 actions only, for 16777215 microbatches");
  CHECK_THROWS_AS((void)action_index(sparse), input_error);
}

TEST_CASE("what has no text") {
  auto order = parse_schedule_csv("0F0,0B0\n1F0,1B0\n");
  auto changed = order;
  changed.lanes[0].actions[0].joined = true;
  CHECK_THROWS_AS((void)to_csv(changed), input_error);
  changed = order;
  std::swap(changed.lanes[0], changed.lanes[1]);
  CHECK_THROWS_AS((void)to_csv(changed), input_error);
  changed = order;
  changed.lanes[0].actions[0].microbatch = no_microbatch;
  CHECK_THROWS_AS((void)to_csv(changed), input_error);
}
