// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/network/boundary.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/price.hpp>

using namespace hetsched;

namespace {

hetsched::link some_link(random_source& random) { return {random.uniform(0, 1e-3), random.uniform(1e8, 1e12)}; }

cluster some_cluster(random_source& random) {
  cluster c;
  for (int k = 0; k < 2; ++k)
    c.subclusters.push_back({"s", {}, random.integer(1, 4), 1 << random.integer(0, 3), some_link(random), some_link(random)});
  for (auto& s : c.subclusters) s.nics = random.integer(1, 4);
  c.links = {{0, 1, some_link(random)}};
  return c;
}

placement some_placement(random_source& random, const cluster& c, int k) {
  const auto shapes = submeshes(c.subclusters[static_cast<std::size_t>(k)], k);
  placement p{.mesh = shapes[static_cast<std::size_t>(random.integer(0, static_cast<int>(shapes.size()) - 1))]};
  std::vector<int> divisors;
  const int n = p.mesh.device_count();
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) divisors.push_back(d);
  p.degrees.data = divisors[static_cast<std::size_t>(random.integer(0, static_cast<int>(divisors.size()) - 1))];
  p.degrees.tensor = n / p.degrees.data;
  if (p.degrees.tensor % 2 == 0 && random.integer(0, 1)) p.degrees = {p.degrees.data, 2, p.degrees.tensor / 2};
  return p;
}

std::vector<device_id> devices_at(const placement& p, int first_node, int first_slot) {
  std::vector<device_id> all;
  for (int i = 0; i < p.mesh.device_count(); ++i)
    all.push_back({p.mesh.subcluster, first_node + i / p.mesh.devices_per_node, first_slot + i % p.mesh.devices_per_node});
  return all;
}

}  // namespace

TEST_CASE("prices of boundaries are those of the transfer plans that they stand for") {
  random_source random(4711);
  int several = 0, near_pairs = 0, overlapping = 0;
  for (int n = 0; n < 3000; ++n) {
    const auto c = some_cluster(random);
    const auto a = some_placement(random, c, 0), b = some_placement(random, c, random.integer(0, 1));
    const bool joined = b.mesh.subcluster == 0;
    const bool near = joined && a.mesh.nodes == 1 && b.mesh.nodes == 1 && random.integer(0, 1);
    const bool one_node = near || (joined && c.subclusters[0].nodes == 1);
    if (joined && !one_node && c.subclusters[0].nodes < 2) continue;
    auto devices = devices_at(a, 0, 0);
    // On one node slots may be as many as it takes; on others the second stage lies behind the first one.
    const auto behind = devices_at(b, one_node ? 0 : joined ? a.mesh.nodes : 0, one_node ? a.mesh.devices_per_node : 0);
    devices.insert(devices.end(), behind.begin(), behind.end());
    const auto rest = [](const placement& p) { return std::int64_t{p.degrees.context} * p.degrees.tensor; };
    const auto batch = std::lcm(a.degrees.data, b.degrees.data), sequence = static_cast<int>(std::lcm(rest(a), rest(b)));
    const auto hidden = random.integer(1, 1000);
    const double element_bytes = 1000;
    const auto from = boundary_layout(a.degrees, batch, sequence, hidden),
               to = boundary_layout(b.degrees, batch, sequence, hidden);
    const reshard_strategy known[] = {reshard_strategy::direct, reshard_strategy::one_to_one, reshard_strategy::regroup_before,
                                      reshard_strategy::regroup_after};
    auto wide = c;  // has those slots
    for (auto& s : wide.subclusters) s.nodes *= 2, s.devices_per_node *= 2;
    const auto wanted = choose_reshard(wide, devices, from, to, element_bytes,
                                       {.outer = std::gcd(a.degrees.data, b.degrees.data), .chunks = {1}, .strategies = known});
    const auto bytes = std::int64_t{batch} * sequence * hidden * 1000;
    const auto found = boundary_cost(c, a, b, near ? proximity::same_node : proximity::other_node, bytes);
    CAPTURE(n);
    CAPTURE(c.subclusters[0].nodes);
    CAPTURE(a.mesh.nodes);
    CAPTURE(a.mesh.devices_per_node);
    CAPTURE(a.degrees.data);
    CAPTURE(b.mesh.nodes);
    CAPTURE(b.mesh.devices_per_node);
    CAPTURE(b.degrees.data);
    CAPTURE(std::string(found.strategy));
    CAPTURE(std::string(name_of(wanted.strategy)));
    REQUIRE(found.forward_s == doctest::Approx(wanted.price.seconds).epsilon(1e-9));
    REQUIRE(found.backward_s == found.forward_s);
    REQUIRE(found.bytes == bytes);
    REQUIRE(found.backward_occupied_s == found.forward_occupied_s);
    if (found.strategy == name_of(wanted.strategy)) {
      REQUIRE(static_cast<double>(found.extra_bytes) ==
              doctest::Approx(static_cast<double>(wanted.price.peak_extra_bytes)).epsilon(1e-9));
      REQUIRE(found.occupied_s() == doctest::Approx(wanted.price.occupied_s).epsilon(1e-9));
    }
    // Said only where it is less.
    if (found.forward_occupied_s) REQUIRE(*found.forward_occupied_s < found.forward_s);
    overlapping += found.occupied_s() < 0.95 * found.forward_s;
    several += found.strategy != name_of(reshard_strategy::direct);
    near_pairs += near;
    // The class tells prices apart.
    auto twin = a;
    twin.degrees = {a.degrees.data, a.degrees.context * a.degrees.tensor, 1};
    REQUIRE(boundary_side_class(twin) == boundary_side_class(a));
    REQUIRE(boundary_cost(c, twin, b, near ? proximity::same_node : proximity::other_node, bytes) == found);
  }
  CHECK(several > 300);
  CHECK(overlapping > 100);
  CHECK(near_pairs > 100);
}

TEST_CASE("the gradient goes back at the bandwidth of its direction, as what is best over the slower one") {
  random_source random(815);
  int several = 0;
  for (int n = 0; n < 300; ++n) {
    auto c = some_cluster(random);
    c.links[0].bandwidth_back = c.links[0].link.bandwidth / random.uniform(1, 20);
    const auto a = some_placement(random, c, 0), b = some_placement(random, c, 1);
    const auto over = [&](double bandwidth, const placement& from, const placement& to) {
      auto same = c;
      same.links[0].link.bandwidth = bandwidth;
      same.links[0].bandwidth_back = 0;
      return boundary_cost(same, from, to, proximity::other_node, 1'000'000'000);
    };
    const auto slow = over(c.links[0].bandwidth_back, a, b), fast = over(c.links[0].link.bandwidth, a, b);
    const auto found = boundary_cost(c, a, b, proximity::other_node, 1'000'000'000);
    CAPTURE(n);
    REQUIRE(found.strategy == slow.strategy);
    REQUIRE(found.extra_bytes == slow.extra_bytes);
    REQUIRE(found.backward_s == doctest::Approx(slow.forward_s));
    REQUIRE(found.occupied_s() == doctest::Approx(slow.occupied_s()));
    REQUIRE(found.forward_s < found.backward_s);
    REQUIRE(found.forward_s >= fast.forward_s * (1 - 1e-12));
    if (fast.strategy == slow.strategy && fast.extra_bytes == slow.extra_bytes)
      REQUIRE(found.forward_s == doctest::Approx(fast.forward_s));
    // The other way round, forward is slow.
    const auto turned = boundary_cost(c, b, a, proximity::other_node, 1'000'000'000);
    REQUIRE(turned.forward_s == doctest::Approx(over(c.links[0].bandwidth_back, b, a).forward_s));
    REQUIRE(turned.backward_s < turned.forward_s);
    several += found.strategy != name_of(reshard_strategy::direct);
  }
  CHECK(several > 30);
}

TEST_CASE("each of eight devices sends to the next node by a port of its own, if there are eight") {
  cluster c;
  c.subclusters = {{"a", {}, 2, 8, {0, 1e15}, {0, 1e9}}};
  const placement stage{.mesh = {0, 1, 8}, .degrees = {.data = 8}};
  const auto seconds = [&](int nics) {
    c.subclusters[0].nics = nics;
    return boundary_cost(c, stage, stage, proximity::other_node, 8'000'000'000).forward_s;
  };
  CHECK(seconds(1) == doctest::Approx(8));
  CHECK(seconds(4) == doctest::Approx(2));
  CHECK(seconds(8) == doctest::Approx(1));
  CHECK(seconds(16) == doctest::Approx(1));
}

TEST_CASE("no link, no transfer") {
  cluster c;
  c.subclusters = {{"a", {}, 1, 1, {}, {}}, {"b", {}, 1, 1, {}, {}}};
  CHECK(boundary_cost(c, {{0, 1, 1}}, {{1, 1, 1}}, proximity::other_node, 1).forward_s > 1e300);
}
