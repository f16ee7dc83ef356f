// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <hetsched/cluster/submesh.hpp>

TEST_CASE("submesh shapes are powers of two in a node, then whole nodes") {
  using hetsched::submesh;
  const hetsched::subcluster two_nodes{
      .name = "x", .device = {}, .nodes = 2, .devices_per_node = 8, .intra_node = {}, .inter_node = {}};
  CHECK(submeshes(two_nodes, 0) == std::vector<submesh>{{0, 1, 1}, {0, 1, 2}, {0, 1, 4}, {0, 1, 8}, {0, 2, 8}});
  auto six = two_nodes;
  six.devices_per_node = 6;
  CHECK(submeshes(six, 0) == std::vector<submesh>{{0, 1, 1}, {0, 1, 2}, {0, 1, 6}, {0, 2, 6}});
  auto one = two_nodes;
  one.nodes = one.devices_per_node = 1;
  CHECK(submeshes(one, 2) == std::vector<submesh>{{2, 1, 1}});
  six.nodes = 1;
  CHECK(submeshes(six, 0) == std::vector<submesh>{{0, 1, 1}, {0, 1, 2}, {0, 1, 4}, {0, 1, 6}});
}
