// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/without_devices.hpp>

#include <doctest/doctest.h>

using namespace hetsched;

namespace {

cluster three() {
  cluster c;
  for (const char* name : {"a", "b", "c"}) c.subclusters.push_back({.name = name, .nodes = 2, .devices_per_node = 4});
  c.links.push_back({0, 1, {1e-6, 1e9}});
  c.links.push_back({1, 2, {2e-6, 2e9}});
  return c;
}

int devices(const cluster& c) {
  int sum = 0;
  for (const auto& s : c.subclusters) sum += s.device_count();
  return sum;
}

}  // namespace

TEST_CASE("whole nodes go, and what is left of one is a subcluster that the others reach as before") {
  for (int lost = 1; lost <= 8; ++lost) {
    CAPTURE(lost);
    CHECK(devices(without_devices(three(), {.subcluster = 1, .count = lost})) == 24 - lost);
  }
  const auto node = without_devices(three(), {.subcluster = 1, .count = 4});
  CHECK(node.subclusters.size() == 3);
  CHECK(node.subclusters[1].nodes == 1);
  const auto rest = without_devices(three(), {.subcluster = 1, .count = 1});
  REQUIRE(rest.subclusters.size() == 4);
  CHECK(rest.subclusters[1].nodes == 1);
  CHECK(rest.subclusters[3].name == "b rest");
  CHECK(rest.subclusters[3].devices_per_node == 3);
  REQUIRE(rest.between(3, 0));
  CHECK(rest.between(3, 0)->latency_s == 1e-6);
  REQUIRE(rest.between(3, 2));
  CHECK(rest.between(3, 2)->bandwidth == 2e9);
  CHECK(rest.between(1, 3).has_value());
}

TEST_CASE("a subcluster that loses all goes with its links; the others keep theirs") {
  const auto gone = without_devices(three(), {.subcluster = 0, .count = 8});
  REQUIRE(gone.subclusters.size() == 2);
  CHECK(gone.subclusters[0].name == "b");
  REQUIRE(gone.between(0, 1));
  CHECK(gone.between(0, 1)->latency_s == 2e-6);
  CHECK(gone.links.size() == 1);
}

TEST_CASE("what is left of a node keeps both directions of its links, and its ports") {
  auto c = three();
  c.links[0].bandwidth_back = 7e9;
  c.subclusters[1].nics = 2;
  const int end = c.links[0].a == 1 ? c.links[0].b : c.links[0].a;
  const auto rest = without_devices(c, {.subcluster = 1, .count = 1});
  CHECK(rest.between(3, end) == c.between(1, end));
  CHECK(rest.between(end, 3) == c.between(end, 1));
  CHECK(rest.between(1, 3)->bandwidth == 2 * c.subclusters[1].inter_node.bandwidth);
}
