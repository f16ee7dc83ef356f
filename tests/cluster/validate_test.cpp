// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include <hetsched/cluster.hpp>

namespace {

hetsched::cluster good_cluster() {
  using namespace hetsched;
  const auto v100 = *find_device("V100-SXM2-32GB");
  const auto a100 = *find_device("A100-SXM4-40GB");
  return {{{"x", v100, 2, 8, {5e-6, 150e9}, {1e-5, 25e9}}, {"y", a100, 1, 4, {5e-6, 300e9}, {}}, {"z", a100, 1, 1, {}, {}}},
          {{0, 1, {1e-4, gbit_per_s(5)}}, {2, 1, {2e-4, gbit_per_s(10)}}}};
}

}  // namespace

TEST_CASE("clusters that make no sense are refused") {
  using hetsched::input_error;
  const auto good = good_cluster();
  CHECK_NOTHROW(validate(good));
  const auto refused = [&](auto spoil) {
    auto c = good;
    spoil(c);
    CHECK_THROWS_AS(validate(c), input_error);
  };
  refused([](auto& c) { c.subclusters.clear(); });
  refused([](auto& c) { c.subclusters[0].name = "y"; });
  refused([](auto& c) { c.subclusters[0].name = ""; });
  refused([](auto& c) { c.subclusters[0].nodes = 0; });
  refused([](auto& c) { c.subclusters[0].devices_per_node = -1; });
  refused([](auto& c) { c.subclusters[0].nodes = 2'000'000'000; });
  refused([](auto& c) { c.subclusters[0].intra_node.bandwidth = 0; });
  refused([](auto& c) { c.subclusters[0].inter_node.latency_s = -1; });
  refused([](auto& c) { c.subclusters[0].inter_node.bandwidth = std::nan(""); });
  refused([](auto& c) { c.subclusters[0].device.memory_bytes = 0; });
  refused([](auto& c) { c.subclusters[0].device.memory_bandwidth = 0; });
  refused([](auto& c) { c.subclusters[0].price_per_node_hour = -1; });
  refused([](auto& c) { c.subclusters[0].price_per_node_hour = std::nan(""); });
  refused([](auto& c) { c.links[0].b = 3; });
  refused([](auto& c) { c.links[0].b = 0; });
  refused([](auto& c) { c.links[0].link.bandwidth = 0; });
  refused([](auto& c) { c.links[0].bandwidth_back = -1; });
  refused([](auto& c) { c.links[0].bandwidth_back = std::nan(""); });
  refused([](auto& c) { c.subclusters[0].nics = 0; });
  refused([](auto& c) { c.links.push_back({1, 0, {0, 1e9}}); });
}
