// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/zero_bubble.hpp>

#include <doctest/doctest.h>

#include <algorithm>

#include <hetsched/core/error.hpp>

#include "../reference_times.hpp"

using namespace hetsched;
using doctest::Approx;

TEST_CASE("ZB-H1 and ZB-H2 of two ranks, written out by hand") {
  CHECK(test::lines(zb_h1(2, 3)) ==
        "F0 F1 I0 W0 F2 I1 W1 I2 W2\n"
        "F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  CHECK(test::lines(zb_h2(2, 4)) ==
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3\n"
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3\n");
}

TEST_CASE("any number of ranks and microbatches: complete and free of deadlock") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int microbatches = 1; microbatches <= 20; ++microbatches)
      for (const auto& order : {zb_h1(ranks, microbatches), zb_h2(ranks, microbatches)}) {
        CAPTURE(ranks);
        CAPTURE(microbatches);
        CHECK(test::defect(order) == "");
        CHECK_FALSE(test::times_of(test::equal_work(order, 1, 2, 1), order).deadlock);
      }
}

// The papers' bubble is of a rank's own span, as ranks do not wait for each other before the optimizer step. The formulas
// are those of the first rank: (p - 1) times the input gradient until its own first one comes, less what it has to do meanwhile,
// plus forwards missing at the end, less the weight gradients that it is behind. They hold where a weight gradient takes no
// longer than a forward, which the papers' settings keep to; a longer one fills more than there is to fill at the end.
TEST_CASE("bubbles with B the whole backward: ZB-H1 (p-1)(F+B-2W), ZB-H2 (p-1)(F+B-3W), holding p and 2p-1 on every rank") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const int extra : {0, 1, 5, 12})
      for (const double forward : {1.0, 1.5, 3.0})
        for (const double input : {1.0, 1.5, 2.0, 3.0})
          for (const double weight : {0.25, 0.5, 1.0, 1.5}) {
            const double f = forward, b = input + weight, w = weight;
            if (w > f || f > input) continue;
            CAPTURE(ranks);
            CAPTURE(extra);
            CAPTURE(f);
            CAPTURE(b);
            CAPTURE(w);
            const auto h1 = zb_h1(ranks, ranks + extra);
            const auto times = test::times_of(test::equal_work(h1, f, b, w), h1);
            CHECK(times.span_bubble() == Approx((ranks - 1) * (f + b - 2 * w)));
            const auto h2 = zb_h2(ranks, 2 * ranks - 1 + extra);
            const auto times2 = test::times_of(test::equal_work(h2, f, b, w), h2);
            CHECK(times2.span_bubble() == Approx((ranks - 1) * (f + b - 3 * w)));
            for (const double held : times.peak) CHECK(held == ranks);
            for (const double held : times2.peak) CHECK(held == 2 * ranks - 1);
          }
}

TEST_CASE("the setting of the paper's figures: all three equal, ZB-H2 without idle time") {
  const auto order = zb_h2(4, 8);
  const auto times = test::times_of(test::equal_work(order, 1, 2, 1), order);
  for (int r = 0; r < 4; ++r) CHECK(times.idle(r) == 0);
  // Ranks start one after the other, and stop so: over the whole iteration that time remains.
  CHECK(times.makespan == 3 * 8 + 3);
}

TEST_CASE("a weight gradient longer than a forward: ZB-H1 waits (p-1) input gradients, not less") {
  for (int ranks = 2; ranks <= 6; ++ranks) {
    const auto order = zb_h1(ranks, 3 * ranks);
    CHECK(test::times_of(test::equal_work(order, 1, 1 + 2, 2), order).span_bubble() == Approx(ranks - 1));
  }
}

TEST_CASE("bad counts are refused") {
  CHECK_THROWS_AS((void)zb_h1(0, 4), input_error);
  CHECK_THROWS_AS((void)zb_h2(4, 0), input_error);
  CHECK_THROWS_AS((void)split_1f1b({1, 2}, {0, 0}, 4), input_error);
}
