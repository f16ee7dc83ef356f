// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/check/device_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../../sanitizer_share.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Steps in an order in which they can be done: computations, transfers that the receiver waits for, some of them passed on, and
/// collectives, some of them inside computations.
device_program random_program(random_source& random) {
  device_program p{.devices = random.integer(2, 5), .steps = {}};
  std::vector<int> last(static_cast<std::size_t>(p.devices), -1);
  std::vector<std::vector<int>> come(last.size());  // what the next computation of a device takes
  const auto add = [&](device_step s) {
    p.steps.push_back(std::move(s));
    return static_cast<int>(p.steps.size()) - 1;
  };
  for (int events = random.integer(10, 60); events > 0; --events) {
    const int d = random.integer(0, p.devices - 1);
    const auto at = static_cast<std::size_t>(d);
    device_step s{.members = {d}};
    s.what.microbatch = static_cast<int>(p.steps.size());
    const int kind = random.integer(0, 9);
    if (kind < 4) {
      if (last[at] >= 0) s.needs.push_back(last[at]);
      s.needs.insert(s.needs.end(), come[at].begin(), come[at].end());
      come[at].clear();
      last[at] = add(s);
      continue;
    }
    s.kind = kind < 8 ? device_step_kind::transfer : device_step_kind::collective;
    for (int k = 0; k < p.devices; ++k)
      if (k != d && (s.kind == device_step_kind::collective && random.integer(0, 1) == 0)) s.members.push_back(k);
    if (s.members.size() == 1) s.members.push_back((d + random.integer(1, p.devices - 1)) % p.devices);
    const bool passes_on = s.kind == device_step_kind::transfer && !come[at].empty() && random.integer(0, 1) == 0;
    for (const int m : s.members) {
      const auto own = last[static_cast<std::size_t>(m)];
      if (own >= 0 && !passes_on && (m == d || s.kind == device_step_kind::collective)) s.needs.push_back(own);
    }
    if (passes_on) s.needs.push_back(come[at].back());
    const int number = add(s);
    const bool taken = random.integer(0, 3) > 0;
    for (const int m : s.members)
      if (taken && (m != d || s.kind == device_step_kind::collective)) come[static_cast<std::size_t>(m)].push_back(number);
  }
  return p;
}

/// A plain model of devices: each has a queue of what it issues, and begins the first of it when its own needs have been met; it
/// is over when all members have begun it.
bool runs(const device_program& p, const device_order& order) {
  std::vector<char> done(p.steps.size(), 0);
  std::vector<std::size_t> front(order.of_device.size(), 0);
  const auto has = [](const device_step& s, int d) {
    return std::find(s.members.begin(), s.members.end(), d) != s.members.end();
  };
  const auto met = [&](const device_step& s, int d) {
    return std::all_of(s.needs.begin(), s.needs.end(), [&](int n) {
      const auto k = static_cast<std::size_t>(n);
      return done[k] != 0 || (d >= 0 && !has(p.steps[k], d));
    });
  };
  const auto begun = [&](std::size_t k, int d) {
    const auto& list = order.of_device[static_cast<std::size_t>(d)];
    const auto f = front[static_cast<std::size_t>(d)];
    return f < list.size() && list[f] == static_cast<int>(k) && met(p.steps[k], d);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t k = 0; k < p.steps.size(); ++k) {
      const auto& s = p.steps[k];
      if (done[k] != 0 || !met(s, -1)) continue;
      if (is_issued(s.kind)) {
        if (!std::all_of(s.members.begin(), s.members.end(), [&](int d) { return begun(k, d); })) continue;
        for (const int d : s.members) ++front[static_cast<std::size_t>(d)];
      }
      done[k] = 1;
      moved = true;
    }
  }
  return std::all_of(done.begin(), done.end(), [](char c) { return c != 0; });
}

}  // namespace

TEST_CASE("orders of devices are proved if and only if they run, and 500 planted cycles are refused") {
  int stuck = 0, ran = 0;
  for (int instance = 0; stuck < 500 / sanitizer_share; ++instance) {
    REQUIRE(instance < 20000);
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto p = random_program(random);
    const auto found = find_device_order(p);
    REQUIRE(found.cycles.empty());
    REQUIRE(check_device_order(p, found.order).empty());
    REQUIRE(runs(p, found.order));
    auto other = found.order;
    auto& list = other.of_device[static_cast<std::size_t>(random.integer(0, p.devices - 1))];
    if (list.size() < 2) continue;
    const auto any = [&] { return static_cast<std::size_t>(random.integer(0, static_cast<int>(list.size()) - 1)); };
    const auto first = any();  // neighbours, or any two
    std::swap(list[first], list[instance % 2 == 0 ? any() : std::min(first + 1, list.size() - 1)]);
    const auto wrong = check_device_order(p, other);
    CHECK(wrong.empty() == runs(p, other));
    if (!wrong.empty()) CHECK(wrong[0].find("is issued behind") != std::string::npos);
    stuck += !wrong.empty();
    ran += wrong.empty() && other != found.order;
  }
  CHECK(ran > 50 / sanitizer_share);
}

TEST_CASE("what cannot be run or is not complete is told") {
  using enum device_step_kind;
  // A collective inside a computation of device 0 that device 1 only comes to behind a transfer, which needs that computation.
  device_program p{.devices = 2, .steps = {}};
  const auto act = [](action_kind k, int stage) { return action{.kind = k, .stage = stage, .microbatch = 0}; };
  using enum action_kind;
  p.steps = {{computation, {0}, {1}, 0, act(forward, 0), 1},
             {collective, {0, 1}, {3}, 0, act(forward, 0), 1},
             {transfer, {0, 1}, {0}, 0, act(send_activation, 0), 0},
             {computation, {1}, {2}, 0, act(forward, 1), 0}};
  const auto found = find_device_order(p);
  REQUIRE(found.cycles.size() == 1);
  CAPTURE(found.cycles[0]);
  CHECK(found.cycles[0].find("collective 1 of 0F0 on devices 0, 1, which waits for 1F0 on device 1") != std::string::npos);

  p.steps[1].needs = {};
  const auto order = find_device_order(p).order;
  REQUIRE(order.of_device == std::vector<std::vector<int>>{{1, 2}, {1, 2}});
  const auto says = [&](const device_order& o, const std::string& part) {
    const auto wrong = check_device_order(p, o);
    REQUIRE(!wrong.empty());
    CAPTURE(wrong[0]);
    CHECK(wrong[0].find(part) != std::string::npos);
  };
  says({{{1, 2}, {2, 1}}}, "is issued behind");
  says({{{1, 2}, {1}}}, "not every device issues 0SEND_F0 from device 0 to device 1");
  says({{{1, 2}, {1, 2, 2}}}, "twice");
  says({{{1, 2, 0}, {1, 2}}}, "not its to issue");
  says({{{1, 2}, {1, 7}}}, "which there is not");
  says({{{1, 2}}}, "of 1 devices");
  for (const auto& members : std::vector<std::vector<int>>{{}, {0}, {0, 0}, {0, 2}, {-1, 0}, {0, 1, 0}}) {
    auto bad = p;
    bad.steps[2].members = members;
    CHECK_THROWS_AS((void)find_device_order(bad), input_error);
  }
  p.steps[0].needs = {4};
  CHECK_THROWS_AS((void)check_device_order(p, order), input_error);
}
