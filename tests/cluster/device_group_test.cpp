// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/device_group.hpp>

#include <doctest/doctest.h>

#include <set>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

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

TEST_CASE("stages share a node if all their devices are on it") {
  const std::vector<device_group> here{{{0, 1, 2}, 4}}, beside{{{0, 1, 1}, 6}}, next{{{0, 1, 2}, 8}}, elsewhere{{{1, 1, 2}, 4}};
  CHECK(proximity_of(here, beside, 4) == proximity::same_node);
  CHECK(proximity_of(here, next, 4) == proximity::other_node);
  CHECK(proximity_of(here, elsewhere, 4) == proximity::other_node);
  CHECK(proximity_of({{{0, 2, 4}, 0}}, here, 4) == proximity::other_node);
  CHECK(proximity_of({here[0], next[0]}, beside, 4) == proximity::other_node);

  random_source random(71);
  int together = 0;
  for (int n = 0; n < 3000; ++n) {
    CAPTURE(n);
    const int per_node = random.integer(1, 8);
    std::vector<device_group> stages[2];
    std::set<std::pair<int, int>> nodes;
    for (auto& groups : stages)
      for (int g = random.integer(1, 2); g > 0; --g) {
        const int count = random.integer(0, 9) == 0 ? 2 : 1;
        const device_group added{{random.integer(0, 4) == 0, count, random.integer(1, per_node)},
                                 random.integer(0, 2 * per_node)};
        for (int d = 0; d < added.mesh.device_count(); ++d)
          nodes.insert({added.mesh.subcluster, (added.first_device + d) / per_node});
        groups.push_back(added);
      }
    together += nodes.size() == 1;
    REQUIRE((proximity_of(stages[0], stages[1], per_node) == proximity::same_node) == (nodes.size() == 1));
  }
  CHECK(together > 100);
}
