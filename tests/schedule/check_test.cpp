// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/check.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders.hpp>

#include "random_pipeline.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

/// Runs the stages as programs of receives, computations and posted sends, firing any program that can go on, in random
/// turn, until none can. A receive takes the head of its channel, and only if that is the microbatch it wants.
bool runs_with_empty_channels(const schedule& order, random_source& random) {
  const std::size_t stages = order.stages.size();
  std::vector<std::array<std::deque<int>, 2>> channels(stages + 1);  // into stage i: activations; into stage i - 1: gradients
  std::vector<std::size_t> at(stages, 0);
  std::vector<std::vector<char>> computed(stages, std::vector<char>(static_cast<std::size_t>(order.microbatches), 0));
  const auto fire = [&](std::size_t i) {
    if (at[i] == order.stages[i].size()) return false;
    const action a = order.stages[i][at[i]];
    const bool is_forward = a.kind == forward;
    const bool receives = is_forward ? i > 0 : i + 1 < stages;
    if (receives) {
      auto& channel = is_forward ? channels[i][0] : channels[i + 1][1];
      if (channel.empty() || channel.front() != a.microbatch) return false;
      channel.pop_front();
    }
    auto& done = computed[i][static_cast<std::size_t>(a.microbatch)];
    if (!is_forward && !done) return false;
    if (is_forward) done = 1;
    if (is_forward && i + 1 < stages) channels[i + 1][0].push_back(a.microbatch);
    if (!is_forward && i > 0) channels[i][1].push_back(a.microbatch);
    ++at[i];
    return true;
  };
  std::vector<std::size_t> turns(stages);
  for (std::size_t i = 0; i < stages; ++i) turns[i] = i;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = stages; i > 1; --i)
      std::swap(turns[i - 1], turns[static_cast<std::size_t>(random.integer(0, static_cast<int>(i) - 1))]);
    for (const std::size_t i : turns) moved = fire(i) || moved;
  }
  for (std::size_t i = 0; i < stages; ++i)
    if (at[i] != order.stages[i].size()) return false;
  return true;
}

bool mentions(const std::vector<std::string>& findings, const std::string& words) {
  return std::any_of(findings.begin(), findings.end(), [&](const auto& f) { return f.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("sound schedules have no findings") {
  random_source random(71);
  for (int n = 0; n < 500; ++n) {
    const int stages = random.integer(1, 9), microbatches = random.integer(1, 20);
    auto warmups = test::random_warmups(random, stages);
    const auto order = one_f_one_b(warmups, microbatches);
    CAPTURE(test::text(order));
    CHECK(check(order).empty());
    CHECK(check(order, warmups).empty());  // the 1F1B family never holds more than its warm-up
    CHECK(check(gpipe(stages, microbatches)).empty());
  }
}

TEST_CASE("incomplete and duplicated") {
  auto order = one_f_one_b({2, 1}, 3);
  order.stages[1].pop_back();
  CHECK(check(order) == std::vector<std::string>{"stage 1: backward 2 is missing"});

  order = one_f_one_b({2, 1}, 3);
  order.stages[0].push_back({forward, 1});
  CHECK(check(order) == std::vector<std::string>{"stage 0: forward 1 appears 2 times"});

  order = one_f_one_b({2, 1}, 3);
  order.stages[0][1].microbatch = 3;
  CHECK(check(order) ==
        std::vector<std::string>{"stage 0: forward 3 is not one of 3 microbatches", "stage 0: forward 1 is missing"});
  order.stages[0][1] = {forward, -1};
  CHECK(mentions(check(order), "forward -1 is not one of 3"));

  order = one_f_one_b({2, 1}, 3);
  order.stages[1].push_back({send_gradient, 0});
  CHECK(mentions(check(order), "stage 1 lists a transfer"));

  CHECK(check(schedule{}) == std::vector<std::string>{"the schedule has no microbatches", "the schedule has no stages"});
}

TEST_CASE("a backward before its forward") {
  auto order = one_f_one_b({2, 1}, 2);
  order.stages[1] = {{forward, 0}, {backward, 1}, {forward, 1}, {backward, 0}};
  CHECK(check(order) == std::vector<std::string>{"stage 1: backward 1 comes before forward 1"});
}

TEST_CASE("more in flight than memory has room for") {
  const auto order = one_f_one_b({4, 2, 1}, 8);
  CHECK(check(order, {4, 2, 1}).empty());
  CHECK(check(order, {3, 2, 1}) ==
        std::vector<std::string>{"stage 0 has 4 microbatches in flight from forward 3 on, its cap is 3"});
  CHECK(check(order, {3, 2, 0}).size() == 2);
  CHECK_THROWS_AS((void)check(order, {4, 2}), input_error);
}

TEST_CASE("neighbours that wait for each other are reported with their cycle") {
  const schedule order{
      2,
      {{{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}}, {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}}};
  CHECK(check(order) ==
        std::vector<std::string>{
            "deadlock: stage 0 backward 0 waits for stage 1 backward 0, which comes after stage 1 forward 1, which waits for "
            "stage 0 forward 1, which comes after stage 0 backward 0"});
}

TEST_CASE("a channel whose ends disagree deadlocks without buffers, though the dependencies have no cycle") {
  const schedule order{
      2,
      {{{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}, {{forward, 1}, {forward, 0}, {backward, 0}, {backward, 1}}}};
  CHECK(check(order) ==
        std::vector<std::string>{"deadlock: stage 0 sends the result of forward 0 before that of forward 1, but stage 1 takes "
                                 "them the other way round"});
  const schedule gradients{
      2,
      {{{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}, {{forward, 0}, {forward, 1}, {backward, 1}, {backward, 0}}}};
  CHECK(mentions(check(gradients), "stage 1 sends the result of backward 1 before that of backward 0, but stage 0 takes"));
}

TEST_CASE("a planted deadlock is found, and its neighbours named") {
  random_source random(72);
  for (int n = 0; n < 1000; ++n) {
    const int stages = random.integer(2, 8), microbatches = random.integer(3, 12);
    auto warmups = test::random_warmups(random, stages);
    auto order = one_f_one_b(warmups, microbatches);
    // Stage i + 1 starts one forward more than stage i does before its first backward.
    const int i = random.integer(0, stages - 2);
    const auto k = static_cast<std::size_t>(i);
    const int few = std::min(warmups[k], microbatches - 1);
    order.stages[k] = one_f_one_b({few}, microbatches).stages[0];
    order.stages[k + 1] = one_f_one_b({few + 1}, microbatches).stages[0];
    CAPTURE(test::text(order));
    const auto findings = check(order);
    REQUIRE(mentions(findings, "deadlock: stage " + std::to_string(i) + " backward 0 waits for stage " + std::to_string(i + 1) +
                                   " backward 0, which comes after stage " + std::to_string(i + 1) + " forward"));
    REQUIRE_FALSE(runs_with_empty_channels(order, random));
  }
}

TEST_CASE("deadlock exactly when a brute-force run gets stuck") {
  random_source random(73);
  int sound = 0, stuck = 0;
  for (int n = 0; n < 20000; ++n) {
    const int stages = random.integer(1, 5), microbatches = random.integer(1, 6);
    auto order = one_f_one_b(test::random_warmups(random, stages), microbatches);
    // Swaps of neighbours keep most orders nearly sound; those that put a backward before its forward are another finding.
    for (int swaps = random.integer(0, 6); swaps > 0; --swaps) {
      auto& stage = order.stages[static_cast<std::size_t>(random.integer(0, stages - 1))];
      const auto at = static_cast<std::size_t>(random.integer(1, 2 * microbatches - 1));
      if (stage[at].microbatch != stage[at - 1].microbatch) std::swap(stage[at], stage[at - 1]);
    }
    CAPTURE(test::text(order));
    const auto findings = check(order);
    const bool runs = runs_with_empty_channels(order, random);
    REQUIRE(findings.empty() == runs);
    if (!runs) REQUIRE(mentions(findings, "deadlock"));
    ++(runs ? sound : stuck);
  }
  CHECK(sound > 3000);
  CHECK(stuck > 3000);
}
