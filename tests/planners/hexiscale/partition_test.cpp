// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/partition.hpp>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>

#include "partition_checks.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("greedy growth and refinement come near the best of all partitions") {
  const auto tally = compare_partitions(grow_and_refine, 600, 1);
  MESSAGE(tally.possible << " possible, " << tally.balanced << " balanced, " << tally.optimal << " optimal, worst "
                         << tally.worst);
  CHECK(tally.possible > 300);
  CHECK(tally.balanced > tally.possible * 95 / 100);
  CHECK(tally.optimal > tally.possible * 75 / 100);
}

TEST_CASE("the graph of a cluster has its machines, their arithmetic and the bandwidth between them") {
  cluster c{.subclusters = {{"a", catalogue_device("RTX4090"), 2, 8, {0, 32e9}, {0, 1e9}},
                            {"b", catalogue_device("RTX3090"), 1, 6, {0, 24e9}, {}},
                            {"c", catalogue_device("RTX3090"), 1, 1, {}, {}}}};
  connect(c, "a", "b", {0, 0.5e9});
  const auto parts = detail::machine_parts(c, 4);
  const std::vector<detail::machine_part> expected{{0, 0, 4}, {0, 0, 4}, {0, 1, 4}, {0, 1, 4}, {1, 0, 4}, {1, 0, 2}, {2, 0, 1}};
  REQUIRE(parts == expected);
  const auto g = detail::graph_of(c, parts, precision::fp16);
  CHECK(g.vertices[0] == doctest::Approx(4 * 165.2e12));
  CHECK(g.vertices[5] == doctest::Approx(2 * 71.2e12));
  CHECK(g.edge(0, 0) == 0);
  CHECK(g.edge(0, 1) == 16 * 32e9);
  CHECK(g.edge(1, 2) == 16 * 1e9);
  CHECK(g.edge(5, 0) == 8 * 0.5e9);
  CHECK(g.edge(4, 5) == 8 * 24e9);
  CHECK(g.edge(6, 0) == 0);
}

TEST_CASE("a cut along the slow links, and one across the fast ones") {
  // Four machines in two rooms.
  device_graph g{{1, 1, 1, 1}, std::vector<double>(16)};
  const auto join = [&](std::size_t a, std::size_t b, double w) { g.edges[a * 4 + b] = g.edges[b * 4 + a] = w; };
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < a; ++b) join(a, b, (a % 2) == (b % 2) ? 10 : 1);
  const auto least = grow_and_refine(g, {.parts = 2});
  CHECK(cut_of(g, least) == 4);
  CHECK(balance_of(g, least, 2) == 1);
  CHECK(cut_of(g, grow_and_refine(g, {.parts = 2, .maximise = true})) == 22);
  CHECK(grow_and_refine(g, {.parts = 1}) == std::vector<int>(4, 0));
  CHECK(cut_of(g, grow_and_refine(g, {.parts = 4})) == 24);
}
