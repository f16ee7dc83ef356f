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

TEST_CASE("links that are missing in words, the first few of them") {
  cluster hardware;
  for (const char* name : {"a", "b", "c", "d", "e"}) hardware.subclusters.push_back({.name = name});
  CHECK(missing_links(hardware) == "a - b, a - c, a - d, a - e, b - c, b - d and 4 other pairs");
  for (int a = 0; a < 5; ++a)
    for (int b = a + 1; b < 5; ++b)
      if (b != 3) hardware.links.push_back({.a = a, .b = b, .link = {0, 1}});
  CHECK(missing_links(hardware) == "a - d, b - d, c - d");
  for (const int other : {0, 1, 2}) hardware.links.push_back({.a = 3, .b = other, .link = {0, 1}});
  CHECK(missing_links(hardware).empty());
}
