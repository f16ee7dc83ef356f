// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/stage_map.hpp>

#include <doctest/doctest.h>

#include <vector>

#include <hetsched/core/error.hpp>

using namespace hetsched;

TEST_CASE("stage maps: line, loop, V, and both directions") {
  CHECK(line_map(3) == std::vector<int>{0, 1, 2});
  CHECK(loop_map(3, 2) == std::vector<int>{0, 1, 2, 0, 1, 2});
  CHECK(v_map(3) == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(bidirectional_map(2) == std::vector<int>{0, 1, 1, 0});
  CHECK_THROWS_AS(detail::require_counts(0, 1), input_error);
  CHECK_THROWS_AS(detail::require_counts(1, 0), input_error);
}
