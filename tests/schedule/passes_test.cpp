// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/passes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/text.hpp>

#include "sound_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

const auto nowhere = [](int, int) { return false; };
const auto everywhere = [](int, int) { return true; };

/// The actions of a rank without its transfers; what is joined to nothing then is joined no more.
std::vector<std::string> without_transfers(const lane& l) {
  std::vector<std::string> names;
  for (const auto& a : l.actions)
    if (!is_transfer(a.kind)) names.push_back((a.joined ? "+" : "") + to_text(a));
  return names;
}

std::vector<action> all_actions(const schedule& order) {
  std::vector<action> all;
  for (const auto& l : order.lanes)
    for (auto a : l.actions) {
      a.joined = false;
      all.push_back(a);
    }
  std::sort(all.begin(), all.end(), [](const action& a, const action& b) {
    return std::tie(a.kind, a.direction, a.stage, a.microbatch) < std::tie(b.kind, b.direction, b.stage, b.microbatch);
  });
  return all;
}

}  // namespace

TEST_CASE("1F1B with its transfers") {
  const auto order = parse_schedule_csv("0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  const auto transfers = add_transfers(order);
  // Microbatch 1 comes when rank 1 has done the forward of microbatch 0 and before its backward begins.
  CHECK(to_csv(transfers) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,1B2,1SEND_B2\n");
  CHECK(check(transfers).empty());
  CHECK(to_csv(group_transfers(transfers)) ==
        "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)GROUP,0B0,0F2,(0SEND_F2;0RECV_B1)GROUP,0B1,0RECV_B2,0B2\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,(1RECV_F2;1SEND_B1)GROUP,1F2,1B2,1SEND_B2\n");
  CHECK(to_csv(group_transfers(parse_schedule_csv("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                                  "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"))) ==
        "0F0,0F1,(0SEND_F0;0SEND_F1;0RECV_B0)GROUP,0B0,0RECV_B1,0B1\n"
        "(1RECV_F0;1RECV_F1)GROUP,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  CHECK(to_csv(split_streams(parse_schedule_csv("0F0,0F1,(0SEND_F0;0SEND_F1;0RECV_B0)GROUP,0B0,0RECV_B1,0B1\n"
                                                "(1RECV_F0;1RECV_F1)GROUP,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"))) ==
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        "0:send:1,(0SEND_F0;0SEND_F1)GROUP\n0:receive:1,0RECV_B0,0RECV_B1\n"
        "1:send:0,1SEND_B0,1SEND_B1\n1:receive:0,(1RECV_F0;1RECV_F1)GROUP\n");
  CHECK(to_csv(split_streams(transfers)) ==
        "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
        "0:send:1,0SEND_F0,0SEND_F1,0SEND_F2\n0:receive:1,0RECV_B0,0RECV_B1,0RECV_B2\n"
        "1:send:0,1SEND_B0,1SEND_B1,1SEND_B2\n1:receive:0,1RECV_F0,1RECV_F1,1RECV_F2\n");
}

TEST_CASE("three legs where a boundary asks for them") {
  const auto transfers = add_transfers(parse_schedule_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n"));
  const auto staged = stage_transfers(transfers, [](int from, int to) { return from == 1 && to == 2; });
  CHECK(to_csv(staged) ==
        "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1D2H_F0,1NET_F0,1RECV_B0,1B0,1SEND_B0\n2H2D_F0,2F0,2B0,2SEND_B0\n");
  CHECK(check(staged).empty());
  CHECK(
      to_csv(split_streams(stage_transfers(transfers, everywhere))) ==
      "0F0,0B0\n1F0,1B0\n2F0,2B0\n0:d2h,0D2H_F0\n0:network:1,0NET_F0\n0:h2d,0H2D_B0\n1:d2h,1D2H_F0,1D2H_B0\n1:network:0,1NET_B0\n"
      "1:network:2,1NET_F0\n1:h2d,1H2D_F0,1H2D_B0\n2:d2h,2D2H_B0\n2:network:1,2NET_B0\n2:h2d,2H2D_F0\n");
  CHECK(stage_transfers(transfers, nowhere) == transfers);
}

TEST_CASE("whatever runs, runs after every pass, under rendezvous") {
  random_source random(321);
  int groups = 0;
  for (int n = 0; n < 3000 / test::sanitizer_share; ++n) {
    auto options = test::random_sound_options(random);
    options.transfers = false;
    options.out_of_order = random.integer(0, 1) == 1;  // the receives follow the sends, so their order is no matter
    const auto order = test::sound_schedule(random, options);
    const auto text = to_csv(order);
    CAPTURE(text);
    const int modulus = random.integer(1, 4);
    const auto crosses = [&](int from, int to) { return (2 * from + to) % modulus == 0; };

    const auto transfers = add_transfers(order);
    REQUIRE(check(transfers) == std::vector<std::string>{});
    for (std::size_t r = 0; r < order.lanes.size(); ++r)
      REQUIRE(without_transfers(transfers.lanes[r]) == without_transfers(order.lanes[r]));
    for (const auto& staged : {transfers, stage_transfers(transfers, crosses)}) {
      REQUIRE(check(staged) == std::vector<std::string>{});
      const auto grouped = group_transfers(staged);
      REQUIRE(check(grouped) == std::vector<std::string>{});
      REQUIRE(all_actions(grouped) == all_actions(staged));
      groups += grouped != staged;
      for (const auto& lowered : {staged, grouped}) {
        const auto streams = split_streams(lowered);
        CAPTURE(to_csv(streams));
        REQUIRE(check(streams) == std::vector<std::string>{});
        REQUIRE(all_actions(streams) == all_actions(staged));
        REQUIRE(split_streams(streams) == streams);
        for (int r = 0; r < order.ranks; ++r)
          for (const auto& a : streams.lanes[static_cast<std::size_t>(r)].actions) REQUIRE_FALSE(is_transfer(a.kind));
      }
    }
  }
  CHECK(groups > 1000 / test::sanitizer_share);
}

TEST_CASE("groups end at their limit") {
  std::string sends = "0SEND_F0", receives = "1RECV_F0", forwards = "0F0", backwards = "0RECV_B0,0B0", ends = "1F0,1B0,1SEND_B0";
  for (int m = 1; m < 300; ++m) {
    const auto k = std::to_string(m);
    forwards += ",0F" + k, sends += ",0SEND_F" + k, receives += ",1RECV_F" + k;
    backwards += ",0RECV_B" + k + ",0B" + k, ends += ",1F" + k + ",1B" + k + ",1SEND_B" + k;
  }
  const auto order =
      group_transfers(parse_schedule_csv(forwards + "," + sends + "," + backwards + "\n" + receives + "," + ends + "\n"));
  CHECK(check(order).empty());
  std::vector<int> sizes;
  for (const auto& a : order.lanes[1].actions)
    if (a.kind == receive_activation) {
      if (a.joined)
        ++sizes.back();
      else
        sizes.push_back(1);
    }
  CHECK(sizes == std::vector<int>{most_grouped_transfers, 300 - most_grouped_transfers});
}

TEST_CASE("a stage that gathers its parameters twice keeps the order of its gatherings") {
  const auto order = parse_schedule_csv("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,0REDUCE_GRAD,1UNSHARD,1F0,1B0,0OPTIMIZER\n");
  CHECK(to_csv(split_streams(order)) ==
        "0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,1F0,1B0,0OPTIMIZER\n0:collective,0REDUCE_GRAD,1UNSHARD\n");
}

TEST_CASE("passes out of turn") {
  const auto order = parse_schedule_csv("0F0,0B0\n1F0,1B0\n");
  const auto transfers = add_transfers(order);
  CHECK_THROWS_WITH_AS((void)add_transfers(transfers), "the schedule lists transfers: 0SEND_F0", input_error);
  CHECK_THROWS_AS((void)add_transfers(split_streams(transfers)), input_error);
  CHECK_THROWS_WITH_AS((void)add_transfers(parse_schedule_csv("0B0,0F0\n")),
                       "the schedule cannot run: rank 0 does not get beyond 0B0", input_error);
  CHECK_THROWS_WITH_AS((void)stage_transfers(group_transfers(transfers), everywhere),
                       "rank 0 0SEND_F0: transfers are staged before they are grouped or put into streams", input_error);
  CHECK_THROWS_AS((void)stage_transfers(split_streams(transfers), everywhere), input_error);
}
