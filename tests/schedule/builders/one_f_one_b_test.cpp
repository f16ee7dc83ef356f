// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

#include "../reference_times.hpp"

using namespace hetsched;
using doctest::Approx;

TEST_CASE("1F1B of three stages and four microbatches, written out by hand") {
  const auto order = one_f_one_b({3, 2, 1}, 4);
  CHECK(order.ranks == 3);
  CHECK(order.stages == 3);
  CHECK(order.microbatches == 4);
  CHECK(order.rank_of == std::vector<int>{0, 1, 2});
  CHECK(test::lines(order) ==
        "F0 F1 F2 B0 F3 B1 B2 B3\n"
        "F0 F1 B0 F2 B1 F3 B2 B3\n"
        "F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST_CASE("warm-up counts above the number of microbatches mean all of them") {
  CHECK(test::lines(one_f_one_b({9, 2}, 2)) == "F0 F1 B0 B1\nF0 F1 B0 B1\n");
  CHECK(one_f_one_b({3, 7}, 3) == gpipe(2, 3));
}

TEST_CASE("GPipe does all forwards first") { CHECK(test::lines(gpipe(2, 3)) == "F0 F1 F2 B0 B1 B2\nF0 F1 F2 B0 B1 B2\n"); }

TEST_CASE("bad counts are refused") {
  CHECK_THROWS_AS((void)one_f_one_b({}, 1), input_error);
  CHECK_THROWS_AS((void)one_f_one_b({1}, 0), input_error);
  CHECK_THROWS_AS((void)one_f_one_b({1}, -3), input_error);
  CHECK_THROWS_WITH_AS((void)one_f_one_b({2, 0}, 4), "the warm-up count of stage 1 is not at least 1", input_error);
  CHECK_THROWS_WITH_AS((void)one_f_one_b({2, 2, 3}, 4),
                       "deadlock: stage 2 starts 3 forwards before its first backward, but stage 1 only 2", input_error);
  CHECK_THROWS_AS((void)gpipe(0, 4), input_error);
  CHECK_THROWS_AS((void)gpipe(4, 0), input_error);
  CHECK_THROWS_AS((void)gpipe(-1, 4), input_error);
}

TEST_CASE("the reference times of two stages, worked out by hand") {
  const auto order = one_f_one_b({2, 1}, 2);  // F0 F1 B0 B1 / F0 B0 F1 B1
  const pipeline p{.forward_s = {1, 2}, .backward_s = {3, 4}, .transfer_s = {0.5}, .gradient_transfer_s = {0.25}};
  auto w = make_workload(p, order);
  const auto times = test::times_of(w, order);
  CHECK(times.start[0] == std::vector<double>{0, 1, 7.75, 13.75});
  CHECK(times.start[1] == std::vector<double>{1.5, 3.5, 7.5, 9.5});
  CHECK(times.makespan == 16.75);
  CHECK(times.busy == std::vector<double>{8, 12});
  CHECK(times.idle(0) == 8.75);
  CHECK(times.idle(1) == 0);
  CHECK(times.peak == std::vector<double>{2, 1});

  // Three phases of 1, 2 and 1: the second activation starts its phases as soon as the first one has left them.
  w.activations[0] = {.staged = true,
                      .d2h = {.wires = {2, -1, -1}, .occupied_s = 1, .latency_s = 0},
                      .network = {.wires = {0, -1, -1}, .occupied_s = 2, .latency_s = 0.5},
                      .h2d = {.wires = {3, -1, -1}, .occupied_s = 1, .latency_s = 0}};
  w.wires.resize(4);
  const auto forwards_only = test::times_of(w, gpipe(2, 2));
  CHECK(forwards_only.start[1][0] == 1 + 1 + 2.5 + 1);
  CHECK(forwards_only.start[1][1] == 4 + 2.5 + 1);

  auto stuck = order;
  std::swap(stuck.lanes[1].actions[0], stuck.lanes[1].actions[1]);
  CHECK(test::times_of(w, stuck).deadlock);
}

TEST_CASE("warm-up counts are refused exactly where the order deadlocks") {
  int refused = 0, built = 0;
  for (int microbatches = 1; microbatches <= 5; ++microbatches)
    for (int code = 0; code < 4 * 4 * 4; ++code) {
      const std::vector<int> warmups{1 + code / 16, 1 + code / 4 % 4, 1 + code % 4};
      auto order = gpipe(3, microbatches);
      for (auto& l : order.lanes) {
        l.actions.clear();
        int forwards = 0;
        const int warmup = std::min(warmups[static_cast<std::size_t>(l.rank)], microbatches);
        for (int done = 0; done < microbatches; ++done) {
          while (forwards < std::min(warmup + done, microbatches))
            l.actions.push_back({.kind = action_kind::forward, .stage = l.rank, .microbatch = forwards++});
          l.actions.push_back({.kind = action_kind::backward, .stage = l.rank, .microbatch = done});
        }
      }
      const bool deadlock = test::times_of(test::equal_work(order, 1, 2, 0), order).deadlock;
      CAPTURE(code);
      CAPTURE(microbatches);
      if (deadlock) {
        ++refused;
        CHECK_THROWS_AS((void)one_f_one_b(warmups, microbatches), input_error);
      } else {
        ++built;
        CHECK(one_f_one_b(warmups, microbatches) == order);
      }
    }
  CHECK(refused > 50);
  CHECK(built > 50);
}

TEST_CASE("1F1B and GPipe wait (p - 1)(F + B); 1F1B holds p - r microbatches on rank r, GPipe all") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int microbatches = 1; microbatches <= 3 * ranks; ++microbatches) {
      CAPTURE(ranks);
      CAPTURE(microbatches);
      const auto plain = one_f_one_b(one_f_one_b_warmups(ranks), microbatches);
      const auto all_first = gpipe(ranks, microbatches);
      CHECK(test::defect(plain) == "");
      CHECK(test::defect(all_first) == "");
      for (const double backward : {1.0, 2.0, 2.75}) {
        const auto times = test::times_of(test::equal_work(plain, 1, backward, 0), plain);
        CHECK(times.bubble() == Approx((ranks - 1) * (1 + backward)));
        for (int r = 0; r < ranks; ++r) CHECK(times.peak[static_cast<std::size_t>(r)] == std::min(microbatches, ranks - r));
        const auto g = test::times_of(test::equal_work(all_first, 1, backward, 0), all_first);
        CHECK(g.bubble() == Approx((ranks - 1) * (1 + backward)));
        CHECK(g.most_held() == microbatches);
      }
    }
}
