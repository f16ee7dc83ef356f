// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <hetsched/core/error.hpp>

#include "random_pipeline.hpp"

using namespace hetsched;

TEST_CASE("1F1B of three stages and four microbatches, written out by hand") {
  const auto order = one_f_one_b({3, 2, 1}, 4);
  CHECK(order.microbatches == 4);
  CHECK(test::text(order) ==
        "F0 F1 F2 B0 F3 B1 B2 B3 \n"
        "F0 F1 B0 F2 B1 F3 B2 B3 \n"
        "F0 B0 F1 B1 F2 B2 F3 B3 \n");
}

TEST_CASE("warm-up counts above the number of microbatches mean all of them") {
  CHECK(test::text(one_f_one_b({9, 2}, 2)) == "F0 F1 B0 B1 \nF0 F1 B0 B1 \n");
  CHECK(one_f_one_b({3, 7}, 3) == gpipe(2, 3));
}

TEST_CASE("GPipe does all forwards first") { CHECK(test::text(gpipe(2, 3)) == "F0 F1 F2 B0 B1 B2 \nF0 F1 F2 B0 B1 B2 \n"); }

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
