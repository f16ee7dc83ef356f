// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/bidirectional.hpp>

#include <doctest/doctest.h>

#include <cstddef>

#include <hetsched/core/error.hpp>

#include "../reference_times.hpp"

using namespace hetsched;
using doctest::Approx;

TEST_CASE("Chimera of four ranks and four microbatches, written out by hand") {
  CHECK(test::lines(chimera(4, 4)) ==
        "F0 F1 f2 b2 f3 b3 B0 B1\n"
        "F0 f2 F1 f3 b2 B0 b3 B1\n"
        "f2 F0 f3 F1 B0 b2 B1 b3\n"
        "f2 f3 F0 B0 F1 B1 b2 b3\n");
}

TEST_CASE("DualPipe of four ranks and eight microbatches, written out by hand; + means fused with the one before") {
  const auto order = dualpipe(4, 8);
  CHECK(order.directions == 2);
  CHECK(order.rank_of == std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0});
  CHECK(test::lines(order) ==
        "F0 F1 F2 f4 i4 w4 f5 F3+b5 f6+B0 b6 f7+B1 b7 I2 W2 I3 W3\n"
        "F0 f4 F1 f5 F2 b4 f6+B0 F3+b5 f7+B1 b6 B2 i7 I3 w7 W3\n"
        "f4 F0 f5 F1 f6 B0 F2+b4 f7+B1 F3+b5 B2 b6 I3 i7 W3 w7\n"
        "f4 f5 f6 F0 I0 W0 F1 f7+B1 F2+b4 B2 F3+b5 B3 i6 w6 i7 w7\n");
}

TEST_CASE("any number of microbatches: complete and free of deadlock") {
  for (int ranks = 1; ranks <= 10; ++ranks)
    for (int microbatches = 1; microbatches <= 26; ++microbatches) {
      CAPTURE(ranks);
      CAPTURE(microbatches);
      const auto v = dualpipe_v(ranks, microbatches);
      CHECK(test::defect(v) == "");
      CHECK_FALSE(test::times_of(test::equal_work(v, 1, 2, 1), v).deadlock);
      if (ranks % 2 != 0) continue;
      for (const auto& order : {chimera(ranks, microbatches), dualpipe(ranks, microbatches)}) {
        CHECK(test::defect(order) == "");
        CHECK_FALSE(test::times_of(test::equal_work(order, 1, 2, 1), order).deadlock);
      }
    }
}

// Chimera's figure counts steps in which forward and backward take equally long, and whole units of p microbatches. With
// B = 2F a unit of p waits 4 (p/2 - 1) F, and further units wait for each other: the ends no longer interlock.
TEST_CASE("Chimera waits p - 2 steps and holds from p/2 + 1 microbatches at the ends to p in the middle") {
  for (int ranks = 2; ranks <= 12; ranks += 2)
    for (int units = 1; units <= 4; ++units) {
      CAPTURE(ranks);
      CAPTURE(units);
      const auto order = chimera(ranks, units * ranks);
      const auto times = test::times_of(test::equal_work(order, 1, 1, 0), order);
      CHECK(times.bubble() == ranks - 2);
      for (int r = 0; r < ranks; ++r) {
        const int inner = r < ranks / 2 ? r : ranks - 1 - r;
        CHECK(times.peak[static_cast<std::size_t>(r)] == ranks / 2 + 1 + inner);
      }
      if (units == 1) CHECK(test::times_of(test::equal_work(order, 1, 2, 0), order).bubble() == 4 * (ranks / 2 - 1));
    }
}

// The report's figure, of the rank that fuses least. It is exact where a forward takes as long as an input gradient and a
// weight gradient no longer: then neighbours' lists interlock at both ends. With dearer input gradients the wait is shorter.
TEST_CASE("DualPipe waits (p/2 - 1)(F&B + B - 3W) and holds p + 1 microbatches; DualPipeV on half the ranks the same") {
  for (int ranks = 2; ranks <= 12; ranks += 2)
    for (const int microbatches : {2 * ranks, 2 * ranks + 2, 5 * ranks})
      for (const double factor : {1.0, 0.9, 0.75})
        for (const double f : {1.0, 2.0})
          for (const double w : {0.5, 1.0}) {
            const double b = f + w;
            CAPTURE(ranks);
            CAPTURE(microbatches);
            CAPTURE(factor);
            CAPTURE(f);
            CAPTURE(w);
            const auto order = dualpipe(ranks, microbatches);
            const auto times = test::times_of(test::equal_work(order, f, b, w, factor), order);
            CHECK(times.bubble() == Approx((ranks / 2 - 1) * (factor * (f + b) + b - 3 * w)));
            CHECK(times.most_held() == ranks + 1);

            // Half the ranks, each with the stages of two: the same list with one microbatch per pair of the two directions.
            const auto v = dualpipe_v(ranks / 2, microbatches / 2);
            const auto v_times = test::times_of(test::equal_work(v, 2 * f, 2 * b, 2 * w, factor), v);
            CHECK(v_times.makespan == Approx(times.makespan));
            CHECK(v_times.bubble() == Approx(times.bubble()));
            CHECK(2 * v_times.most_held() == times.most_held());
          }
}

TEST_CASE("DualPipe with dearer input gradients waits less than its figure") {
  const auto order = dualpipe(8, 32);
  const auto times = test::times_of(test::equal_work(order, 1, 3, 1), order);
  CHECK(times.bubble() < (8 / 2 - 1) * (1 + 3 + 3 - 3));
  CHECK(times.bubble() == Approx(11));
}

TEST_CASE("bad counts are refused") {
  CHECK_THROWS_WITH_AS((void)chimera(3, 4),
                       "chimera needs an even number of ranks, not 3: its two directions meet between two ranks", input_error);
  CHECK_THROWS_AS((void)dualpipe(5, 4), input_error);
  CHECK_THROWS_AS((void)dualpipe(0, 4), input_error);
  CHECK_THROWS_AS((void)dualpipe_v(2, 0), input_error);
  CHECK_THROWS_AS((void)chimera(2, -1), input_error);
}
