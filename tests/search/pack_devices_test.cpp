// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/pack_devices.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

/// A subcluster of so many nodes and devices on each, behind others.
cluster of_nodes(std::vector<std::vector<int>> sizes) {
  cluster c;
  for (const auto& s : sizes) c.subclusters.push_back({"s", {}, s[0], s[1], {}, {}});
  return c;
}

proximity near(const cluster& c, const device_group& a, const device_group& b) {
  return proximity_of({a}, {b}, subcluster_of(c, a.mesh).devices_per_node);
}

/// Stages of random shapes that the cluster has devices for, those of a subcluster behind each other unless `mixed`.
std::vector<submesh> random_shapes(random_source& random, const cluster& c, bool mixed) {
  std::vector<submesh> shapes;
  for (std::size_t k = 0; k < c.subclusters.size(); ++k) {
    const auto all = submeshes(c.subclusters[k], static_cast<int>(k));
    int left = c.subclusters[k].device_count();
    const bool small = random.integer(0, 1) == 0;  // shapes, which leave more to choose
    for (int tries = 0; tries < 40 && left > 0 && random.integer(0, 19) > 0; ++tries) {
      const int last = small ? static_cast<int>(all.size()) / 2 : static_cast<int>(all.size()) - 1;
      const auto& mesh = all[static_cast<std::size_t>(random.integer(0, last))];
      if (mesh.device_count() > left) continue;
      left -= mesh.device_count();
      shapes.push_back(mesh);
    }
  }
  if (mixed)
    for (std::size_t i = shapes.size(); i > 1; --i)
      std::swap(shapes[i - 1], shapes[static_cast<std::size_t>(random.integer(0, static_cast<int>(i) - 1))]);
  return shapes;
}

}  // namespace

TEST_CASE("runs of neighbours and what stands alone, the larger first, every subcluster by itself") {
  const auto c = of_nodes({{3, 4}, {1, 1}});
  // From the last stage on: eight devices, one, and behind another subcluster two and one, which end a node.
  const auto groups = pack_devices(c, std::vector<submesh>{{0, 1, 1}, {0, 1, 2}, {1, 1, 1}, {0, 1, 1}, {0, 2, 4}});
  CHECK(groups == std::vector<device_group>{{{0, 1, 1}, 8}, {{0, 1, 2}, 9}, {{1, 1, 1}, 0}, {{0, 1, 1}, 11}, {{0, 2, 4}, 0}});
  CHECK(pack_devices(c, std::vector<submesh>{}).empty());
}

TEST_CASE("stages of equal shapes lie side by side, from the last one on") {
  for (const int nodes : {1, 2, 4})
    for (const int per_node : {1, 2, 4, 8})
      for (int devices = 1; devices <= per_node; devices *= 2)
        for (int stages = 1; stages <= nodes * per_node / devices; ++stages) {
          const auto c = of_nodes({{nodes, per_node}});
          const std::vector<submesh> shapes(static_cast<std::size_t>(stages), submesh{0, 1, devices});
          const auto groups = pack_devices(c, shapes);
          for (int i = 0; i + 1 < stages; ++i) {
            const int behind = stages - 1 - i;  // stages from the end
            const bool same = behind * devices / per_node == (behind - 1) * devices / per_node;
            REQUIRE((near(c, groups[static_cast<std::size_t>(i)], groups[static_cast<std::size_t>(i) + 1]) ==
                     proximity::same_node) == same);
          }
        }
}

TEST_CASE("random shapes that fit: no device twice, on whole nodes or inside one, for all of them") {
  random_source random(82);
  for (int n = 0; n < 4000; ++n) {
    CAPTURE(n);
    cluster c;
    for (int k = random.integer(1, 3); k > 0; --k)
      c.subclusters.push_back({"s", {}, random.integer(1, 4), random.integer(1, 8), {}, {}});
    const auto shapes = random_shapes(random, c, n % 2 == 0);
    const auto groups = pack_devices(c, shapes);
    REQUIRE(groups.size() == shapes.size());
    std::vector<std::vector<int>> users;
    for (const auto& s : c.subclusters) users.emplace_back(static_cast<std::size_t>(s.device_count()));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& [mesh, first] = groups[i];
      REQUIRE(mesh == shapes[i]);
      const int per_node = subcluster_of(c, mesh).devices_per_node;
      auto& used = users[static_cast<std::size_t>(mesh.subcluster)];
      for (int d = first; d < first + mesh.device_count(); ++d) REQUIRE(++used.at(static_cast<std::size_t>(d)) == 1);
      if (mesh.devices_per_node == per_node)
        REQUIRE(first % per_node == 0);
      else
        REQUIRE(first / per_node == (first + mesh.device_count() - 1) / per_node);
    }
  }
}

TEST_CASE("where stages side by side lie on whole nodes or inside one, those that share a node then share one") {
  random_source random(83);
  int plain = 0, sharing = 0;
  for (int n = 0; n < 8000; ++n) {
    CAPTURE(n);
    cluster c;
    for (int k = random.integer(1, 2); k > 0; --k)
      c.subclusters.push_back({"s", {}, random.integer(1, 4), 1 << random.integer(0, 3), {}, {}});
    const auto shapes = random_shapes(random, c, false);
    // Side by side, by hand.
    std::vector<int> used(c.subclusters.size());
    std::vector<device_group> beside(shapes.size());
    bool whole = true;
    for (std::size_t i = shapes.size(); i-- > 0;) {
      auto& at = used[static_cast<std::size_t>(shapes[i].subcluster)];
      const int per_node = subcluster_of(c, shapes[i]).devices_per_node, end = at + shapes[i].device_count() - 1;
      whole = whole && (shapes[i].devices_per_node == per_node ? at % per_node == 0 : at / per_node == end / per_node);
      beside[i] = {shapes[i], at};
      at = end + 1;
    }
    if (!whole) continue;
    ++plain;
    const auto groups = pack_devices(c, shapes);
    for (std::size_t i = 0; i + 1 < shapes.size(); ++i)
      if (near(c, beside[i], beside[i + 1]) == proximity::same_node) {
        ++sharing;
        REQUIRE(near(c, groups[i], groups[i + 1]) == proximity::same_node);
      }
  }
  CHECK(plain > 1000);
  CHECK(sharing > 1000);
}
