// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/check/check.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sound_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

using findings = std::vector<std::string>;

findings check_csv(const std::string& text, const check_options& options = {}) {
  return check(parse_schedule_csv(text), options);
}

/// Work of one byte per stage and microbatch, one backward_weight holding `weight_share` of it.
workload bytes_of(const schedule& order, std::vector<double> capacity, double weight_share = 1) {
  workload w;
  w.ranks = order.ranks;
  w.stages = order.stages;
  w.directions = order.directions;
  w.work.assign(order.rank_of.size(), {.activation_bytes = 1, .weight_backward_bytes = weight_share, .checkpoint_bytes = 0.25});
  w.memory_capacity = std::move(capacity);
  return w;
}

}  // namespace

TEST_CASE("sound schedules have no findings") {
  CHECK(check_csv("0F0,0B0\n").empty());
  CHECK(check_csv("0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n").empty());
  CHECK(check_csv("0F0,1F1r1,1B1r1,0B0\n0F1r1,1F0,1B0,0B1r1\n").empty());
  CHECK(check_csv("\n0F0,0R0,0I0,0W0,0OPTIMIZER\n").empty());
}

TEST_CASE("without any backward a schedule is one of inference, and complete with its forwards") {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const auto order = forward_schedule(ranks, 3);
    CHECK(is_forward_only(order));
    CHECK(check(order).empty());
    CHECK(check(add_transfers(order)).empty());
    CHECK(parse_schedule_csv(to_csv(order)) == order);
  }
  CHECK(check_csv("0F0,0F1\n1F0,1F1\n", {.in_flight_caps = {2, 1}}).size() == 1);
  CHECK(check_csv("0F0,0F1\n1F0\n") == findings{"1F1 is missing"});
  // Whatever goes back makes it one of training.
  CHECK(check_csv("0F0,0F1\n1F0,1F1,1B0\n") == findings{"0B0 is missing", "0B1 is missing", "1B1 is missing"});
  CHECK(!check_csv("0F0,0OPTIMIZER\n1F0\n").empty());
}

TEST_CASE("published schedules are sound, with and without their transfers") {
  random_source random(333);
  int built = 0;
  for (const auto name : schedule_names())
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int microbatches = 1; microbatches <= 24; microbatches += random.integer(1, 5)) {
        const auto r = static_cast<std::size_t>(ranks);
        const pipeline even{std::vector<double>(r, 1), std::vector<double>(r, 2), std::vector<double>(r - 1, 0.5)};
        schedule order;
        try {
          order = build_schedule(name, even, microbatches);
        } catch (const input_error&) {
          continue;  // a count that it does not admit
        }
        ++built;
        CAPTURE(name);
        CAPTURE(to_csv(order));
        CHECK(check(order) == findings{});
        const auto transfers = add_transfers(order);
        CHECK(check(transfers) == findings{});
        CHECK(check(group_transfers(transfers)) == findings{});
        CHECK(check(split_streams(stage_transfers(transfers, [](int from, int to) { return from < to; }))) == findings{});
      }
  CHECK(built > 500);
}

TEST_CASE("incomplete and duplicated") {
  CHECK(check_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n") == findings{"1B1 is missing"});
  CHECK(check_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n") == findings{"1F1 is missing"});
  CHECK(check_csv("0F0,0B0,0F0\n") == findings{"0F0 is listed twice"});
  CHECK(check_csv("0F0,0I0\n") == findings{"0W0 is missing"});
  CHECK(check_csv("0F0,0W0\n") == findings{"0I0 is missing"});
  CHECK(check_csv("0F0,0B0,0W0\n") == findings{"0B0 is listed whole and in parts"});
  CHECK(check_csv("0F0,0B0,0OPTIMIZER,0OPTIMIZER\n") == findings{"0OPTIMIZER is listed twice"});
  CHECK(check_csv("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n").empty());
  CHECK(check_csv("0F0,0B0,1F1r1,1B1r1\n1F0,1B0,0F1r1,0B1r1,0F0r1\n") ==
        findings{"microbatch 0 runs through directions 0 and 1", "0F0r1 is of a microbatch that runs through direction 0"});
  CHECK(check_csv("0F0,0B0,1F1r1,1B1r1,1B0r1\n1F0,1B0,0F1r1,0B1r1\n") ==
        findings{"1B0r1 is of a microbatch that runs through direction 0"});
  CHECK(check_csv("0F0,0B0,1F1r1,1B1r1,0REDUCE_GRAD\n1F0,1B0,0F1r1,0B1r1\n") ==
        findings{"0REDUCE_GRAD is listed for 1 of 2 directions"});
}

TEST_CASE("transfers: all or none, both ends, one way") {
  CHECK(check_csv("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n") == findings{"1SEND_B0 is missing", "0RECV_B0 is missing"});
  CHECK(check_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n") == findings{"1RECV_F0 is missing"});
  CHECK(check_csv("0F0,0NET_F0,0RECV_B0,0B0\n1H2D_F0,1F0,1B0,1SEND_B0\n") == findings{"0D2H_F0 is missing"});
  CHECK(check_csv("0F0,0D2H_F0,0NET_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n") == findings{"1H2D_F0 is missing"});
  CHECK(check_csv("0F0,0SEND_F0,0D2H_F0,0NET_F0,0RECV_B0,0B0\n1H2D_F0,1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        findings{"0F0: what it sends to stage 1 is listed in one leg and in three"});
  // Of the direction that the microbatch does not run through; and one transfer asks for all.
  const auto astray = check_csv("0F0,1F1r1,1B1r1,0B0,0SEND_F1\n0F1r1,1F0,1B0,0B1r1\n");
  CHECK(astray.size() == 9);
  CHECK(std::count(astray.begin(), astray.end(),
                   "microbatch 1 runs through direction 1, but is sent to stage 1 of direction 0") == 1);
}

TEST_CASE("actions where they do not belong") {
  auto order = parse_schedule_csv("0F0,0B0\n1F0,1B0\n");
  const auto with = [&](std::size_t l, const action& a) {
    auto changed = order;
    changed.lanes[l].actions.push_back(a);
    return check(changed);
  };
  CHECK(with(0, {forward, false, 0, 2, 0}) == findings{"rank 0 2F0 is not of one of 2 stages"});
  CHECK(with(0, {forward, false, 0, -1, 0}) == findings{"rank 0 -1F0 is not of one of 2 stages"});
  CHECK(with(0, {forward, false, 1, 0, 0}) == findings{"rank 0 0F0r1 is not of one of 1 directions"});
  CHECK(with(0, {forward, false, 0, 0, 7}) == findings{"rank 0 0F7 is not of one of 1 microbatches"});
  CHECK(with(0, {forward, false, 0, 0, no_microbatch}) == findings{"rank 0 0F is not of one of 1 microbatches"});
  CHECK(with(0, {optimizer, false, 0, 0, 0}) == findings{"rank 0 0OPTIMIZER0 takes no microbatch"});
  CHECK(with(0, {static_cast<action_kind>(action_kinds), false, 0, 0, 0}) == findings{"rank 0 lists an action of no kind"});
  CHECK(with(0, {forward, false, 0, 1, 0}) == findings{"rank 0 1F0 belongs to rank 1"});
  CHECK(with(1, {send_activation, false, 0, 1, 0}) == findings{"rank 1 1SEND_F0 crosses no boundary between stages"});
  CHECK(with(0, {receive_activation, false, 0, 0, 0}) == findings{"rank 0 0RECV_F0 crosses no boundary between stages"});
  CHECK(check_csv("0F0,0SEND_F0,1F0,1B0,0B0\n") == findings{"rank 0 0SEND_F0 stays on its rank"});
  CHECK(check_csv("0F0,0B0\n1F0,1B0\n0:receive:1,0SEND_F0\n") == findings{"rank 0 0SEND_F0 does not belong to a receive stream"});
  CHECK(check_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n1:send:0,1SEND_F0\n") ==
        findings{"rank 1 1SEND_F0 is listed in the lane for rank 0, but goes to or comes from rank 2"});
}

TEST_CASE("what a rank does by itself is no event with what it does with others") {
  const std::string rest = "1RECV_F0,1F0,1B0,1SEND_B0\n";
  CHECK(check_csv("(0F0;0SEND_F0)OVERLAP_F_B,0RECV_B0,0B0\n" + rest) == findings{"rank 0 0SEND_F0 cannot be one event with 0F0"});
  CHECK(check_csv("0F0,(0SEND_F0;0RECV_B0)GROUP,0B0\n" + rest).empty());
}

TEST_CASE("no schedule at all") {
  CHECK(check(schedule{}) ==
        findings{"the schedule has no ranks", "the schedule has no stages", "the schedule has no microbatches"});
  auto order = parse_schedule_csv("0F0,0B0\n1F0,1B0\n");
  auto changed = order;
  changed.rank_of.push_back(0);
  CHECK(check(changed) == findings{"the stage map has 3 entries for 2 stages of 1 directions"});
  changed = order;
  changed.rank_of[1] = 2;
  CHECK(check(changed) == findings{"the stage map names rank 2"});
  changed = order;
  changed.lanes.pop_back();
  CHECK(check(changed) == findings{"the schedule has fewer lanes than ranks"});
  changed = order;
  std::swap(changed.lanes[0], changed.lanes[1]);
  CHECK(check(changed).front() == "lane 0 is not the compute stream of rank 0");
  changed = order;
  changed.lanes.push_back({0, stream::send, -1, {}});
  CHECK(check(changed) == findings{"lane 2 has peer -1"});
  changed = order;
  changed.lanes[1].actions[0].joined = true;
  CHECK(check(changed) == findings{"rank 1 1F0 is joined to nothing"});
  changed = make_schedule(1, 500, {0});
  CHECK(check(changed).size() == 101);
  CHECK(check(changed).back() == "there is more, not listed");
  CHECK(check(changed, {.most_findings = 2}) == findings{"0F0 is missing", "0F1 is missing", "there is more, not listed"});
}

TEST_CASE("more in flight than the caps allow") {
  const std::string order = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1I0,1F1,1W0,1I1,1W1,1F2,1B2\n";
  CHECK(check_csv(order, {.in_flight_caps = {3, 2}}).empty());
  CHECK(check_csv(order, {.in_flight_caps = {2, 2}}) ==
        findings{"rank 0 has 3 microbatches in flight from 0F2 on, its cap is 2"});
  CHECK(check_csv(order, {.in_flight_caps = {1, 1}}) ==
        findings{"rank 0 has 3 microbatches in flight from 0F2 on, its cap is 1",
                 "rank 1 has 2 microbatches in flight from 1F1 on, its cap is 1"});
  CHECK_THROWS_AS((void)check_csv(order, {.in_flight_caps = {1}}), input_error);
}

TEST_CASE("more memory than a rank has") {
  const auto order = parse_schedule_csv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1I1,1W1\n");
  CHECK(peak_memory(order, bytes_of(order, {})) == std::vector<double>{2, 2});
  CHECK(peak_memory(order, bytes_of(order, {}, 0.5)) == std::vector<double>{2, 1.5});
  CHECK(peak_memory(order, bytes_of(order, {}, 0)) == std::vector<double>{2, 1});
  CHECK(check(order, bytes_of(order, {})).empty());
  CHECK(check(order, bytes_of(order, {2, 2})).empty());
  CHECK(check(order, bytes_of(order, {1, 1.5}, 0.5)) == findings{"rank 0 holds activations of 2 from 0F1 on, its cap is 1"});
  CHECK(check(order, bytes_of(order, {1, 1.25}, 0.5)) ==
        findings{"rank 0 holds activations of 2 from 0F1 on, its cap is 1",
                 "rank 1 holds activations of 1.5 from 1F1 on, its cap is 1.25"});
  // A recomputed stage holds its checkpoint (a quarter) until the recomputation begins.
  const auto recomputed = parse_schedule_csv("0F0,0F1,0R0,0B0,0R1,0B1\n");
  CHECK(peak_memory(recomputed, bytes_of(recomputed, {})) == std::vector<double>{1.25});
  CHECK(check(recomputed, {.in_flight_caps = {2}}).empty());
  // Fused, the forward's activation comes before the backward's goes.
  const auto apart = parse_schedule_csv("0F0,0B0,0F1,0B1\n"), fused = parse_schedule_csv("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n");
  CHECK(peak_memory(apart, bytes_of(apart, {})) == std::vector<double>{1});
  CHECK(peak_memory(fused, bytes_of(fused, {})) == std::vector<double>{2});
  auto other = bytes_of(order, {1});
  CHECK_THROWS_AS((void)check(order, other), input_error);
  other.stages = 3;
  CHECK_THROWS_AS((void)check(order, other), input_error);
}

TEST_CASE("peak memory is what a step by step account finds") {
  random_source random(331);
  for (int n = 0; n < 1000 / test::sanitizer_share; ++n) {
    const auto order = test::sound_schedule(random, test::random_sound_options(random));
    auto costs = bytes_of(order, {});
    for (auto& w : costs.work) {
      w.activation_bytes = random.integer(1, 8);
      w.weight_backward_bytes = random.integer(0, static_cast<int>(w.activation_bytes));
      w.checkpoint_bytes = random.integer(0, 2);
    }
    const auto text = to_csv(order);
    CAPTURE(text);
    std::vector<double> peaks;
    for (int r = 0; r < order.ranks; ++r) {
      const auto& actions = order.lanes[static_cast<std::size_t>(r)].actions;
      // What is held after the first k actions, counted afresh; an event counts all that it takes and nothing that it frees.
      double peak = 0;
      for (std::size_t k = 1; k <= actions.size(); ++k) {
        std::size_t event = k - 1;
        while (actions[event].joined) --event;
        double held = 0;
        for (std::size_t i = 0; i < k; ++i) {
          const auto& a = actions[i];
          if (a.kind != forward) continue;
          const auto& w = costs.at(a.direction, a.stage);
          const auto done = [&](action_kind kind, std::size_t before) {
            return std::any_of(actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(before), [&](const action& b) {
              return b.kind == kind && b.stage == a.stage && b.microbatch == a.microbatch && b.direction == a.direction;
            });
          };
          const bool checkpoint = done(recompute, actions.size());
          const bool again = done(recompute, k);
          if (checkpoint && !again) held += w.checkpoint_bytes;
          if (checkpoint && !again) continue;
          if (done(backward, event) || done(backward_weight, event)) continue;
          held += done(backward_input, event) ? w.weight_backward_bytes : w.activation_bytes;
        }
        peak = std::max(peak, held);
      }
      peaks.push_back(peak);
    }
    REQUIRE(peak_memory(order, costs) == peaks);
    costs.memory_capacity = peaks;
    REQUIRE(check(order, costs).empty());
    for (auto& c : costs.memory_capacity) c -= 0.5;
    std::size_t computing = 0;
    for (const auto& p : peaks) computing += p > 0;
    REQUIRE(check(order, costs).size() >= computing);
  }
}

TEST_CASE("something taken out is missed") {
  random_source random(332);
  for (int n = 0; n < 2000 / test::sanitizer_share; ++n) {
    auto order = test::sound_schedule(random, test::random_sound_options(random));
    std::vector<std::size_t> filled;
    for (std::size_t l = 0; l < order.lanes.size(); ++l)
      if (!order.lanes[l].actions.empty()) filled.push_back(l);
    if (filled.empty()) continue;
    auto& actions = order.lanes[filled[static_cast<std::size_t>(random.integer(0, static_cast<int>(filled.size()) - 1))]].actions;
    const auto at = random.integer(0, static_cast<int>(actions.size()) - 1);
    const auto gone = actions[static_cast<std::size_t>(at)];
    if (is_parameter(gone.kind) || gone.kind == recompute) continue;
    actions.erase(actions.begin() + at);
    if (static_cast<std::size_t>(at) < actions.size()) actions[static_cast<std::size_t>(at)].joined = false;
    if (is_forward_only(order)) continue;  // sound again
    const auto found = check(order);
    CAPTURE(to_text(gone));
    REQUIRE_FALSE(found.empty());
    const bool named = std::count(found.begin(), found.end(), to_text(gone) + " is missing") == 1;
    REQUIRE(named);
  }
}
