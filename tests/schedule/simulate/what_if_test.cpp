// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/simulate/what_if.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>

#include "../random_pipeline.hpp"
#include "../random_schedule.hpp"

using namespace hetsched;

TEST_CASE("a free stage or link of a pipeline is one that takes no time") {
  random_source random(81);
  for (int n = 0; n < 500; ++n) {
    const int stages = random.integer(1, 6), m = random.integer(1, 12);
    const auto p = test::random_pipeline(random, stages);
    const auto warmups = test::random_warmups(random, stages);
    const auto order = one_f_one_b(warmups, m);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    const auto w = make_workload(p, order);
    const auto result = what_if(w, order);
    REQUIRE(result.makespan_s == makespan(p, warmups, m));
    REQUIRE(result.free_rank_s.size() == p.forward_s.size());
    for (std::size_t i = 0; i < p.forward_s.size(); ++i) {
      auto faster = p;
      faster.forward_s[i] = faster.backward_s[i] = 0;
      REQUIRE(result.free_rank_s[i] == makespan(faster, warmups, m));
    }
    REQUIRE(result.free_wire_s.size() == w.wires.size());
    for (std::size_t k = 0; k < w.wires.size(); ++k)
      for (int i = 0; i + 1 < stages; ++i)
        for (const bool up : {false, true}) {
          const std::string from = std::to_string(up ? i + 1 : i), to = std::to_string(up ? i : i + 1);
          if (w.wires[k].name != "rank " + from + " to " + to) continue;
          auto faster = p;
          if (faster.gradient_transfer_s.empty()) {
            faster.gradient_transfer_s = faster.transfer_s;
            if (faster.gradient_transfer_occupied_s.empty()) faster.gradient_transfer_occupied_s = faster.transfer_occupied_s;
          }
          const auto at = static_cast<std::size_t>(i);
          (up ? faster.gradient_transfer_s : faster.transfer_s)[at] = 0;
          auto& occupied = up ? faster.gradient_transfer_occupied_s : faster.transfer_occupied_s;
          if (!occupied.empty()) occupied[at] = 0;
          REQUIRE(result.free_wire_s[k] == makespan(faster, warmups, m));
        }
  }
}

TEST_CASE("a chain that does not use a resource takes as long without it") {
  random_source random(82);
  int ran = 0;
  for (int n = 0; n < 2000; ++n) {
    const auto order = test::random_schedule(random, {.transfers = true, .parameters = false, .swaps = false});
    auto w = test::random_workload(random, order);
    for (auto& at : w.wires) at.capacity = 1 << 10;  // nothing waits: makespans fall with every time
    CAPTURE(test::text(order));
    CAPTURE(test::text(w));
    what_if_result result;
    try {
      result = what_if(w, order);
    } catch (const input_error&) {
      continue;
    }
    ++ran;
    const auto path = critical_path(w, order);
    for (int r = 0; r < order.ranks; ++r) {
      bool used = false;
      for (const auto& a : path) used = used || (!is_transfer(a.what.kind) && a.rank == r);
      const double free = result.free_rank_s[static_cast<std::size_t>(r)];
      REQUIRE(free <= result.makespan_s);
      if (!used) REQUIRE(free == result.makespan_s);
    }
    for (const double free : result.free_wire_s) REQUIRE(free <= result.makespan_s);
  }
  CHECK(ran > 500);
}

TEST_CASE("a wire that is free still leaves the other wires of a leg") {
  const auto order = gpipe(2, 2);
  workload w = make_workload({{1, 1}, {1, 1}, {0}, {}}, order);
  w.wires = {{"port", 1}, {"cable", 1}, {"back", 1}};
  w.activations[0].network = {{0, 1, -1}, 4, 1};
  w.gradients[0].network = {{2, -1, -1}, 3, 0.5};
  const auto result = what_if(w, order);
  CHECK(result.makespan_s == 19.5);  // activations 1-5 and 5-9, there at 6 and 10; backwards end at 12, 13; gradients 15.5, 18.5
  CHECK(result.free_rank_s == std::vector<double>{17.5, 17.5});
  CHECK(result.free_wire_s == std::vector<double>{19.5, 19.5, 14});
  CHECK(with_free_wire(w, 0).activations[0].network == hop{{-1, 1, -1}, 4, 1});
  CHECK(with_free_wire(w, 2).gradients[0].network == hop{});
}
