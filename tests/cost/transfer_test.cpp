// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Two nodes of four, one node of two, and one apart; links between the first two.
cluster three_parts() {
  cluster c;
  c.subclusters = {
      {"a", {}, 2, 4, {1e-6, 1e11}, {1e-5, 1e10}}, {"b", {}, 1, 2, {2e-6, 2e11}, {3e-5, 1e9}}, {"c", {}, 1, 1, {}, {}}};
  c.links = {{0, 1, {1e-3, 1e9}}};
  return c;
}

}  // namespace

TEST_CASE("between subclusters their link, inside one that between its nodes, or inside its only node") {
  const auto c = three_parts();
  const submesh a{0, 1, 4}, b{1, 1, 2}, apart{2, 1, 1};
  CHECK(link_between(c, a, b) == link{1e-3, 1e9});
  CHECK(link_between(c, b, a) == link{1e-3, 1e9});
  CHECK(link_between(c, a, {0, 1, 1}) == link{1e-5, 1e10});
  CHECK(link_between(c, b, b) == link{2e-6, 2e11});
  CHECK(!link_between(c, a, apart));
  CHECK(stage_transfer_s(c, a, b, 5e8) == doctest::Approx(1e-3 + 0.5));
  CHECK(stage_transfer_s(c, b, b, 0) == doctest::Approx(2e-6));
  CHECK(stage_transfer_s(c, apart, b, 1) == never);
}

TEST_CASE("the replicas of two stages: each its share over a link of its own, those of a node over one port") {
  cluster c;
  c.subclusters = {
      {"a", {}, 4, 4, {1e-6, 1e11}, {1e-5, 1e10}}, {"b", {}, 1, 2, {2e-6, 2e11}, {3e-5, 1e9}}, {"c", {}, 1, 1, {}, {}}};
  c.links = {{0, 1, {1e-3, 1e9}}};
  const auto apart = proximity::other_node, together = proximity::same_node;
  const placement two{{0, 1, 2}, {2, 1, 1}}, tensor{{0, 1, 2}, {1, 1, 2}}, four{{0, 1, 4}, {4, 1, 1}};
  const placement nodes{{0, 2, 4}, {8, 1, 1}}, replicas{{0, 2, 4}, {2, 1, 4}}, whole{{0, 2, 4}, {1, 1, 8}};
  const placement pair{{1, 1, 2}, {2, 1, 1}}, single{{1, 1, 1}, {}}, lone{{2, 1, 1}, {}};
  const auto seconds = [&](const placement& from, const placement& to, proximity near) {
    return boundary_transfer_s(c, from, to, near, 8e9);
  };
  // On one node: as many as the side of fewer replicas.
  CHECK(seconds(two, two, together) == doctest::Approx(1e-6 + 8e9 / 2 / 1e11).epsilon(1e-12));
  CHECK(seconds(two, tensor, together) == doctest::Approx(1e-6 + 8e9 / 1e11).epsilon(1e-12));
  CHECK(seconds(tensor, two, together) == seconds(two, tensor, together));
  // On two nodes: one port each, however many replicas.
  CHECK(seconds(two, two, apart) == doctest::Approx(1e-5 + 8e9 / 1e10).epsilon(1e-12));
  CHECK(seconds(four, four, apart) == seconds(two, two, apart));
  CHECK(seconds(tensor, two, apart) == seconds(two, two, apart));
  // On more nodes: a port of each, if a replica has it.
  CHECK(seconds(nodes, nodes, apart) == doctest::Approx(1e-5 + 8e9 / 2 / 1e10).epsilon(1e-12));
  CHECK(seconds(nodes, replicas, apart) == seconds(nodes, nodes, apart));
  CHECK(seconds(nodes, whole, apart) == doctest::Approx(1e-5 + 8e9 / 1e10).epsilon(1e-12));
  CHECK(seconds(nodes, four, apart) == seconds(nodes, whole, apart));
  // A subcluster of one node has no other one.
  for (const auto near : {apart, together}) {
    CHECK(seconds(pair, pair, near) == doctest::Approx(2e-6 + 8e9 / 2 / 2e11).epsilon(1e-12));
    CHECK(seconds(pair, single, near) == doctest::Approx(2e-6 + 8e9 / 2e11).epsilon(1e-12));
  }
  // Between subclusters; no link.
  CHECK(seconds(nodes, pair, apart) == doctest::Approx(1e-3 + 8e9 / 1e9).epsilon(1e-12));
  CHECK(seconds(pair, nodes, apart) == seconds(nodes, pair, apart));
  CHECK(seconds(two, lone, apart) == never);
}

namespace {

/// The nodes on which a stage's replicas begin, if it lies from the first device of a node on.
std::size_t nodes_of_replicas(const placement& p) {
  std::set<int> nodes;
  const int devices = p.mesh.device_count();
  for (int r = 0; r < p.degrees.data; ++r) nodes.insert(r * devices / p.degrees.data / p.mesh.devices_per_node);
  return nodes.size();
}

}  // namespace

TEST_CASE("pairs of replicas: no port twice; equal rails, equal transfers") {
  random_source random(92);
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    cluster c;
    const auto some_link = [&] { return link{random.uniform(0, 1e-3), random.uniform(1e8, 1e12)}; };
    const int parts = random.integer(1, 3);
    for (int k = 0; k < parts; ++k) {
      c.subclusters.push_back({"s", {}, random.integer(1, 4), 1 << random.integer(0, 3), some_link(), some_link()});
      for (int j = 0; j < k; ++j)
        if (random.integer(0, 4) > 0) c.links.push_back({j, k, some_link()});
    }
    std::vector<placement> all;
    for (int k = 0; k < parts; ++k)
      for (const auto& mesh : submeshes(c.subclusters[static_cast<std::size_t>(k)], k))
        for (int data = 1; data <= mesh.device_count(); ++data)
          if (mesh.device_count() % data == 0) all.push_back({mesh, {data, 1, mesh.device_count() / data}});
    const auto may_share = [](const placement& a, const placement& b) {
      return a.mesh.subcluster == b.mesh.subcluster && a.mesh.nodes == 1 && b.mesh.nodes == 1;
    };
    for (const auto& a : all)
      for (const auto& b : all) {
        const int ports = static_cast<int>(std::min(nodes_of_replicas(a), nodes_of_replicas(b)));
        REQUIRE(transfer_pairs(a, b, false) == ports);
        REQUIRE(transfer_pairs(a, b, true) == std::min(a.degrees.data, b.degrees.data));
        if (a.mesh.subcluster != b.mesh.subcluster || transfer_rails(a) != transfer_rails(b)) continue;
        for (const auto& other : all) {
          REQUIRE(may_share(a, other) == may_share(b, other));
          for (const auto near : {proximity::other_node, proximity::same_node}) {
            if (near == proximity::same_node && !may_share(a, other)) continue;
            REQUIRE(boundary_transfer_s(c, a, other, near, 1e9) == boundary_transfer_s(c, b, other, near, 1e9));
            REQUIRE(boundary_transfer_s(c, other, a, near, 1e9) == boundary_transfer_s(c, other, b, near, 1e9));
          }
        }
      }
  }
}

TEST_CASE("a reduction is a ring: every holder sends 2 (n - 1) parts of an n-th over the slowest link") {
  const auto c = three_parts();
  const placement a{{0, 1, 4}, {}}, b{{1, 1, 2}, {}}, apart{{2, 1, 1}, {}};
  const auto seconds = [&](const std::vector<placement>& holders, double bytes) { return ring_reduction_s(c, holders, bytes); };
  CHECK(seconds({}, 1e9) == 0);
  CHECK(seconds({a}, 1e9) == 0);
  CHECK(seconds({a, a}, 1e9) == doctest::Approx(2 * (1e-5 + 0.5e9 / 1e10)));
  CHECK(seconds({a, a, a, a}, 1e9) == doctest::Approx(6 * (1e-5 + 0.25e9 / 1e10)));
  CHECK(seconds({a, b}, 1e9) == doctest::Approx(2 * (1e-3 + 0.5e9 / 1e9)));
  CHECK(seconds({a, a, b}, 1e9) == doctest::Approx(4 * (1e-3 + 1e9 / 3 / 1e9)));
  CHECK(seconds({a, b, a}, 1e9) == seconds({a, a, b}, 1e9));
  CHECK(seconds({a, b, apart}, 1e9) == never);
  // Nothing to move still takes its turns.
  CHECK(seconds({a, b}, 0) == doctest::Approx(2e-3));
}

TEST_CASE("random clusters that are joined throughout: the closed form of the slowest pair") {
  random_source random(91);
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    cluster c;
    const int parts = random.integer(1, 4);
    const auto some_link = [&] { return link{random.uniform(0, 1e-3), random.uniform(1e8, 1e12)}; };
    for (int k = 0; k < parts; ++k) {
      c.subclusters.push_back({"s", {}, random.integer(1, 3), 4, some_link(), some_link()});
      for (int j = 0; j < k; ++j) c.links.push_back({j, k, some_link()});
    }
    std::vector<placement> holders;
    for (int h = random.integer(2, 5); h > 0; --h) holders.push_back({{random.integer(0, parts - 1), 1, 1}, {}});
    const double bytes = random.uniform(0, 1e10), count = static_cast<double>(holders.size());
    double slowest = 0;
    for (std::size_t a = 0; a < holders.size(); ++a)
      for (std::size_t b = 0; b < holders.size(); ++b) {
        if (a == b) continue;
        const auto over = link_between(c, holders[a].mesh, holders[b].mesh);
        REQUIRE(over);
        slowest = std::max(slowest, over->latency_s + bytes / count / over->bandwidth);
      }
    REQUIRE(ring_reduction_s(c, holders, bytes) == doctest::Approx(2 * (count - 1) * slowest).epsilon(1e-12));
  }
}
