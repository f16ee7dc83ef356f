// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/cluster.hpp>

namespace {

hetsched::cluster three_subclusters() {
  using namespace hetsched;
  const auto v100 = *find_device("V100-SXM2-32GB");
  const auto a100 = *find_device("A100-SXM4-40GB");
  return {{{"x", v100, 2, 8, {5e-6, 150e9}, {1e-5, 25e9}}, {"y", a100, 1, 4, {5e-6, 300e9}, {}}, {"z", a100, 1, 1, {}, {}}},
          {{0, 1, {1e-4, gbit_per_s(5)}}, {2, 1, {2e-4, gbit_per_s(10)}}}};
}

}  // namespace

TEST_CASE("the link between any two devices is found") {
  const auto c = three_subclusters();
  CHECK(c.device_count() == 21);
  CHECK(c.find("y") == 1);
  CHECK_FALSE(c.find("w"));
  CHECK(c.between({0, 0, 1}, {0, 0, 7})->bandwidth == 150e9);
  CHECK(c.between({0, 0, 1}, {0, 1, 1})->bandwidth == 25e9);
  CHECK(c.between({0, 0, 1}, {1, 0, 0})->bandwidth == 5e9 / 8);
  CHECK(c.between({1, 0, 0}, {2, 0, 0}) == c.between({2, 0, 0}, {1, 0, 0}));
  CHECK_FALSE(c.between({0, 0, 0}, {2, 0, 0}));
  CHECK(hetsched::link{1e-4, 1e9}.transfer_s(5e8) == doctest::Approx(0.5001));
}

TEST_CASE("a link may be slower in one direction") {
  auto c = three_subclusters();
  CHECK(c.links[0].back() == c.links[0].link);
  c.links[0].bandwidth_back = 1e9;
  CHECK(c.between(0, 1) == hetsched::link{1e-4, 5e9 / 8});
  CHECK(c.between(1, 0) == hetsched::link{1e-4, 1e9});
  CHECK(c.between({1, 0, 0}, {0, 1, 2}) == c.between(1, 0));
}

TEST_CASE("two links at once are as slow as either, and of a kind only if both are") {
  using namespace hetsched;
  const hetsched::link near{1e-6, 1e11, link_kind::nvlink}, far{1e-5, 1e10, link_kind::pcie};
  CHECK(slower_of(near, far) == hetsched::link{1e-5, 1e10});
  CHECK(slower_of(near, near) == near);
}

TEST_CASE("devices of a node share its network ports, of which each uses one") {
  hetsched::subcluster s{.nodes = 2, .devices_per_node = 8, .inter_node = {1e-5, 5e10}, .nics = 4};
  CHECK(s.ports(8) == 4);
  CHECK(s.ports(2) == 2);
  CHECK(s.between_nodes(8) == hetsched::link{1e-5, 2e11});
  CHECK(s.between_nodes(1) == s.inter_node);
}
