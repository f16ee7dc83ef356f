// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/questions/describe.hpp>

#include <doctest/doctest.h>

#include "../../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("layers, placements and memory in words") {
  CHECK(describe({3, 4}) == "layer 3");
  CHECK(describe({3, 8}) == "layers 3-7");
  const auto hardware = two_kinds();
  CHECK(describe(hardware, placement{{0, 1, 1}, {}}) == "subcluster slow (1x1)");
  CHECK(describe(hardware, placement{{1, 2, 2}, {2, 1, 2}}) == "subcluster fast (2x2, data 2, tensor 2)");
  CHECK(describe(hardware, placement{{0, 1, 4}, {1, 4, 1}, recomputation::selective, 1}) ==
        "subcluster slow (1x4, context 4, recompute selective, ZeRO 1)");
  CHECK(in_gib(static_cast<double>(gib)) == "1 GiB");
  CHECK(in_gib(31.25 * static_cast<double>(gib)) == "31.25 GiB");
}
