// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/plan/transport.hpp>

using namespace hetsched;

namespace {

using groups = std::vector<device_group>;

cluster two_kinds() {
  cluster c{.subclusters = {{"old", catalogue_device("V100-SXM2-32GB"), 2, 4, {5e-6, gbit_per_s(1200)}, {1e-5, gbit_per_s(100)}},
                            {"new", catalogue_device("A100-SXM4-80GB"), 1, 4, {5e-6, gbit_per_s(2400)}, {}}}};
  connect(c, "new", "old", {.latency_s = 1e-4, .bandwidth = gbit_per_s(5)});
  return c;
}

}  // namespace

TEST_CASE("the nearest transport that joins two stages") {
  auto c = two_kinds();
  const groups first{{{0, 1, 2}, 0}}, second{{{0, 1, 2}, 2}}, other_node{{{0, 1, 4}, 4}}, both_nodes{{{0, 2, 4}, 0}},
      new_ones{{{1, 1, 4}, 0}};
  CHECK(choose_transport(c, first, first).how == transport::same_devices);
  CHECK(choose_transport(c, first, second) == transport_choice{transport::peer, "", "all devices are on one node of old"});
  CHECK(choose_transport(c, first, other_node) == transport_choice{transport::nccl, "", "NCCL joins the nodes of old"});
  CHECK(choose_transport(c, both_nodes, second).how == transport::nccl);
  CHECK(choose_transport(c, other_node, new_ones) == transport_choice{transport::nccl, "", "NCCL joins old and new"});

  c.subclusters[0].inter_node_path.nic = "mlx5_0";
  c.links[0].path = {.nccl = false, .nic = ""};
  CHECK(choose_transport(c, first, other_node).nic == "mlx5_0");
  CHECK(choose_transport(c, first, second).nic.empty());
  CHECK(choose_transport(c, new_ones, first) == transport_choice{transport::staged, "", "NCCL does not join new and old"});
  c.links[0].path = {.nccl = true, .nic = "eth1"};
  CHECK(choose_transport(c, first, new_ones).nic == "eth1");
  CHECK(choose_transport(c, new_ones, first).nic == "eth1");
}
