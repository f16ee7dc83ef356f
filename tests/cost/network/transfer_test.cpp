// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/network/transfer.hpp>

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
  CHECK(link_between(c, a, b) == hetsched::link{1e-3, 1e9});
  CHECK(link_between(c, b, a) == hetsched::link{1e-3, 1e9});
  CHECK(link_between(c, a, {0, 1, 1}) == hetsched::link{1e-5, 1e10});
  CHECK(link_between(c, b, b) == hetsched::link{2e-6, 2e11});
  CHECK(!link_between(c, a, apart));
  CHECK(stage_transfer_s(c, a, b, 5e8) == doctest::Approx(1e-3 + 0.5));
  CHECK(stage_transfer_s(c, b, b, 0) == doctest::Approx(2e-6));
  CHECK(stage_transfer_s(c, apart, b, 1) == never);
}

TEST_CASE("a reduction is a ring: every holder sends 2 (n - 1) parts of an n-th over the slowest link") {
  const auto c = three_parts();
  const placement a{{0, 1, 4}, {}}, b{{1, 1, 2}, {}}, apart{{2, 1, 1}, {}};
  const auto seconds = [&](const std::vector<placement>& holders, double bytes) {
    return gradient_reduction_s(c, holders, bytes);
  };
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
  // Halves and thirds make four pieces, two for each node's port; on one node devices have ports of their own.
  const placement halves{{0, 2, 4}, {4, 1, 2}}, thirds{{0, 2, 3}, {2, 1, 3}}, pair{{1, 1, 2}, {1, 1, 2}};
  CHECK(union_of_cuts(std::vector{halves, thirds}) == 4);
  CHECK(seconds({halves, thirds}, 1e9) == doctest::Approx(2 * (2e-5 + 0.25e9 / 1e10)));
  CHECK(seconds({halves, pair}, 1e9) == doctest::Approx(2 * (2e-3 + 0.5e9 / 1e9)));
  CHECK(seconds({pair, pair}, 1e9) == doctest::Approx(2 * (2e-6 + 0.25e9 / 2e11)));
}

TEST_CASE("random clusters that are joined throughout: the closed form of the slowest pair") {
  random_source random(91);
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    cluster c;
    const int parts = random.integer(1, 4);
    const auto some_link = [&] { return hetsched::link{random.uniform(0, 1e-3), random.uniform(1e8, 1e12)}; };
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
    REQUIRE(gradient_reduction_s(c, holders, bytes) == doctest::Approx(2 * (count - 1) * slowest).epsilon(1e-12));
  }
}

TEST_CASE("what two stages share crosses once either way; replicas hand each other their parts") {
  const auto c = three_parts();
  const auto a = [](int data) { return placement{{0, 1, data}, {.data = data}}; };
  const auto b = [](int data) { return placement{{1, 1, data}, {.data = data}}; };
  CHECK(shared_reduction_s(c, a(1), b(1), 1e9) == doctest::Approx(2e-3 + 1));
  CHECK(shared_reduction_s(c, a(2), b(2), 1e9) == doctest::Approx(2e-3 + 2));
  CHECK(shared_reduction_s(c, a(4), b(1), 1e9) == doctest::Approx(2e-3 + 1.6));
  CHECK(shared_reduction_s(c, b(1), a(4), 1e9) == shared_reduction_s(c, a(4), b(1), 1e9));
  // Tensor ranks each have a slice: as many bytes, in as many messages.
  const placement halves{{0, 1, 2}, {.tensor = 2}}, other{{1, 1, 2}, {.tensor = 2}};
  CHECK(shared_reduction_s(c, halves, other, 1e9) == doctest::Approx(4e-3 + 1));
  // Counted message by message, as gradient_exchange sends them: each of the replicas adds up one part of the whole.
  for (int m = 1; m <= 4; ++m)
    for (int n = 1; n <= 2; ++n) {
      double there = 0;
      const double part = 1e9 / (m + n);
      for (int from = 0; from < m; ++from)
        for (int to = 0; to < n; ++to) there += part + part;  // the term of a part of the other's, and the sum of its own
      CHECK(shared_reduction_s(c, a(m), b(n), 1e9) == doctest::Approx(2e-3 + there / 1e9));
    }
  CHECK(shared_reduction_s(c, a(1), {{2, 1, 1}, {}}, 1e9) == never);
}

TEST_CASE("messages go by their direction, sums by the slower one") {
  auto c = three_parts();
  c.links[0].bandwidth_back = 1e8;
  const placement a{{0, 1, 4}, {}}, b{{1, 1, 2}, {}};
  CHECK(stage_transfer_s(c, a.mesh, b.mesh, 5e8) == doctest::Approx(1e-3 + 0.5));
  CHECK(stage_transfer_s(c, b.mesh, a.mesh, 5e8) == doctest::Approx(1e-3 + 5));
  for (const auto& holders : {std::vector{a, b}, std::vector{b, a}}) {
    CHECK(gradient_reduction_s(c, holders, 1e9) == doctest::Approx(2 * (1e-3 + 0.5e9 / 1e8)));
    CHECK(gradient_reduction_s(c, link_index(c), holders, 1e9) == gradient_reduction_s(c, holders, 1e9));
  }
}

TEST_CASE("sums between nodes use all their ports, a message one") {
  auto c = three_parts();
  const placement a{{0, 1, 4}, {}};
  const double one_s = gradient_reduction_s(c, std::vector{a, a}, 1e9);
  c.subclusters[0].nics = 2;
  CHECK(gradient_reduction_s(c, std::vector{a, a}, 1e9) == doctest::Approx(2 * (1e-5 + 0.25e9 / 1e10)));
  c.subclusters[0].nics = 8;  // more than devices
  CHECK(gradient_reduction_s(c, std::vector{a, a}, 1e9) == doctest::Approx(2 * (1e-5 + 0.125e9 / 1e10)));
  CHECK(one_s == doctest::Approx(2 * (1e-5 + 0.5e9 / 1e10)));
  CHECK(stage_transfer_s(c, a.mesh, a.mesh, 1e9) == doctest::Approx(1e-5 + 0.1));
}
