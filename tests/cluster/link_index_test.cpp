// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/random.hpp>

TEST_CASE("an index finds the links that the cluster finds") {
  hetsched::random_source random(7);
  hetsched::cluster c;
  c.subclusters.resize(12);
  for (int a = 0; a < 12; ++a)
    for (int b = 0; b < a; ++b) {
      if (random.uniform() < 0.4) continue;
      const bool turned = random.uniform() < 0.5;
      c.links.push_back({turned ? b : a, turned ? a : b, {random.uniform(), 1 + random.uniform()}});
      if (random.uniform() < 0.5) c.links.back().bandwidth_back = 1 + random.uniform();
    }
  const hetsched::link_index links(c);
  int joined = 0;
  for (int a = 0; a < 12; ++a)
    for (int b = 0; b < 12; ++b) {
      CHECK(links.between(a, b) == c.between(a, b));
      joined += links.between(a, b).has_value();
    }
  CHECK(links.between(c.links[0].a, c.links[0].b) == c.links[0].link);
  CHECK(links.between(c.links[0].b, c.links[0].a) == c.links[0].back());
  CHECK(joined == 2 * static_cast<int>(c.links.size()));
  CHECK_FALSE(links.between(0, 12));
}
