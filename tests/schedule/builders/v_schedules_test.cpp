// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/v_schedules.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

#include "../reference_times.hpp"

using namespace hetsched;
using doctest::Approx;

namespace {

/// The papers' setting: forward, input and weight gradient of a chunk all take one unit; a rank has two chunks.
test::reference_times unit_times(const schedule& order) { return test::times_of(test::equal_work(order, 2, 4, 2), order); }

}  // namespace

TEST_CASE("ZB-V of two ranks and three microbatches, followed by hand unit by unit") {
  // Capitals: the first chunk. Both ranks may hold four chunks; rank 1 is full after f1 and makes room with w0 and W0.
  CHECK(test::lines(zb_v(2, 3)) ==
        "F0 F1 F2 f0 i0 w0 f1 i1 I0 w1 W0 f2 i2 I1 w2 I2 W1 W2\n"
        "F0 f0 F1 f1 i0 I0 w0 F2 W0 f2 i1 I1 i2 I2 w1 W1 w2 W2\n");
}

TEST_CASE("any number of ranks and microbatches: complete and free of deadlock") {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int microbatches = 1; microbatches <= 20; ++microbatches)
      for (const auto& order : {zb_v(ranks, microbatches), v_half(ranks, microbatches), v_min(ranks, microbatches)}) {
        CAPTURE(ranks);
        CAPTURE(microbatches);
        CHECK(test::defect(order) == "");
        CHECK_FALSE(unit_times(order).deadlock);
      }
}

TEST_CASE("peak memory: ZB-V that of 1F1B, V-Half p/2 + 1, V-Min (p + 4)/3 microbatches") {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (const int microbatches : {2 * ranks, 3 * ranks + 1, 6 * ranks}) {
      CAPTURE(ranks);
      CAPTURE(microbatches);
      const auto plain = one_f_one_b(one_f_one_b_warmups(ranks), microbatches);
      const double one_f_one_b_peak = test::times_of(test::equal_work(plain, 1, 2, 1), plain).most_held();
      CHECK(unit_times(zb_v(ranks, microbatches)).most_held() == one_f_one_b_peak);
      if (ranks == 1) continue;  // a single rank runs a microbatch through both chunks before the next: 1
      CHECK(unit_times(v_half(ranks, microbatches)).most_held() == (ranks + 2) / 2);
      CHECK(unit_times(v_min(ranks, microbatches)).most_held() == (ranks + 4) / 3);
    }
}

// In units of a chunk's forward, where 1F1B waits 6(p - 1): V-Half about half of that and V-Min two thirds, as in the paper
// (p/2m and 2p/3m of an iteration of 6m units). What is below 3p and 4p comes from the ends, where ranks start with the
// turns close by; V-Min has to keep two units more between its turns if the number of ranks is a multiple of 3.
TEST_CASE("bubbles where forward, input and weight gradient take equally long") {
  for (int ranks = 2; ranks <= 17; ++ranks)
    for (const int microbatches : {2 * ranks - 1, 2 * ranks, 5 * ranks}) {
      CAPTURE(ranks);
      CAPTURE(microbatches);
      CHECK(unit_times(zb_v(ranks, microbatches)).span_bubble() == 0);
      CHECK(unit_times(v_half(ranks, microbatches)).bubble() == 3 * ranks - (ranks % 2 == 0 ? 5 : 4));
      CHECK(unit_times(v_min(ranks, microbatches)).bubble() == 4 * ranks - (ranks % 3 == 0 ? 3 : 5));
    }
}

// Other times than the paper's: ZB-V's idle time is then no longer 0. The papers say that V-Half keeps up in the steady state
// as long as W + 2I >= 2F and W + 2F >= 2I; V-Min waits in every period unless all are equal.
TEST_CASE("unequal times: ZB-V and V-Half do not wait in the steady state, V-Min does") {
  for (const double input : {0.8, 1.0, 1.2})
    for (const double weight : {0.7, 1.0}) {
      CAPTURE(input);
      CAPTURE(weight);
      const auto bubble = [&](const schedule& order) {
        return test::times_of(test::equal_work(order, 2, 2 * (input + weight), 2 * weight), order).bubble();
      };
      for (int ranks = 2; ranks <= 9; ++ranks) {
        CAPTURE(ranks);
        CHECK(bubble(zb_v(ranks, 12 * ranks)) == Approx(bubble(zb_v(ranks, 6 * ranks))));
        CHECK(bubble(v_half(ranks, 12 * ranks)) == Approx(bubble(v_half(ranks, 6 * ranks))));
        CHECK(bubble(zb_v(ranks, 6 * ranks)) < 0.5 * 2 * (ranks - 1) * (1 + input + weight));
      }
    }
}

TEST_CASE("a schedule of 64 ranks and 1024 microbatches") {
  const auto order = zb_v(64, 1024);
  for (const auto& l : order.lanes) CHECK(l.actions.size() == 6 * 1024);
}

TEST_CASE("bad counts are refused") {
  CHECK_THROWS_AS((void)zb_v(0, 4), input_error);
  CHECK_THROWS_AS((void)v_half(4, 0), input_error);
  CHECK_THROWS_AS((void)v_min(-1, 4), input_error);
}
