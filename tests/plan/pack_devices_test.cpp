// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/pack_devices.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("the larger shapes first, equal ones as they come, every subcluster by itself") {
  const auto groups = pack_devices({{0, 1, 1}, {0, 1, 2}, {1, 1, 1}, {0, 1, 1}, {0, 2, 4}});
  CHECK(groups == std::vector<device_group>{{{0, 1, 1}, 10}, {{0, 1, 2}, 8}, {{1, 1, 1}, 0}, {{0, 1, 1}, 11}, {{0, 2, 4}, 0}});
  CHECK(pack_devices({}).empty());
}

TEST_CASE("random sets of a subcluster's shapes: no device twice, on whole nodes or inside one") {
  random_source random(82);
  for (int n = 0; n < 2000; ++n) {
    CAPTURE(n);
    subcluster s;
    s.nodes = random.integer(1, 4);
    s.devices_per_node = random.integer(1, 8);
    const auto all = submeshes(s, 0);
    std::vector<submesh> shapes;
    int left = s.device_count();
    while (random.integer(0, 9) > 0) {
      const auto& mesh = all[static_cast<std::size_t>(random.integer(0, static_cast<int>(all.size()) - 1))];
      if (mesh.device_count() > left) break;
      left -= mesh.device_count();
      shapes.push_back(mesh);
    }
    const auto groups = pack_devices(shapes);
    REQUIRE(groups.size() == shapes.size());
    std::vector<int> users(static_cast<std::size_t>(s.device_count()));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& [mesh, first] = groups[i];
      REQUIRE(mesh == shapes[i]);
      for (int d = first; d < first + mesh.device_count(); ++d) REQUIRE(++users.at(static_cast<std::size_t>(d)) == 1);
      if (mesh.devices_per_node == s.devices_per_node)
        REQUIRE(first % s.devices_per_node == 0);
      else
        REQUIRE(first / s.devices_per_node == (first + mesh.device_count() - 1) / s.devices_per_node);
    }
  }
}
