// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/degrees.hpp>

#include <doctest/doctest.h>

using namespace hetsched;

TEST_CASE("replicas are those along data and context, and their product does not overflow") {
  CHECK(replicas({}) == 1);
  CHECK(replicas({.data = 4, .context = 2, .tensor = 8}) == 8);
  CHECK(replicas({.data = 1 << 30, .context = 1 << 30}) == 1LL << 60);
  CHECK(degrees{1, 2, 3} == degrees{.data = 1, .context = 2, .tensor = 3});
}
