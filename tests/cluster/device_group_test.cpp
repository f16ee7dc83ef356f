// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/device_group.hpp>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>

using namespace hetsched;

TEST_CASE("groups of devices count together") {
  CHECK(device_count({}) == 0);
  CHECK(device_count({{{0, 1, 4}, 0}, {{0, 2, 4}, 8}}) == 12);
}

TEST_CASE("the shape of groups: their nodes add up, if they lie in one subcluster and take equally many devices of each") {
  CHECK(shape_of({{{1, 2, 4}, 8}}) == submesh{1, 2, 4});
  CHECK(shape_of({{{1, 2, 4}, 8}, {{1, 1, 4}, 0}, {{1, 1, 4}, 4}}) == submesh{1, 4, 4});
  CHECK_THROWS_AS((void)shape_of({{{1, 1, 4}, 0}, {{0, 1, 4}, 0}}), input_error);
  CHECK_THROWS_AS((void)shape_of({{{1, 1, 4}, 0}, {{1, 1, 2}, 4}}), input_error);
}
