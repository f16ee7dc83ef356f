// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/detail/set_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;
using detail::widest_paths;

namespace {

double length_of(const device_graph& g, const std::vector<std::size_t>& path) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) sum += 1 / g.edge(path[i], path[i + 1]);
  return sum;
}

device_graph random_widths(random_source& random, std::size_t n) {
  device_graph g{std::vector<double>(n, 1.0), std::vector<double>(n * n)};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < a; ++b) g.edges[a * n + b] = g.edges[b * n + a] = random.uniform(0.5, 8);
  return g;
}

}  // namespace

TEST_CASE("with all links followed the widest path is found, with two a near one") {
  random_source random(7);
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    const auto n = static_cast<std::size_t>(random.integer(1, 6));
    const auto g = random_widths(random, n);
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    double least = 1e300;
    do least = std::min(least, length_of(g, order));
    while (std::next_permutation(order.begin(), order.end()));
    const auto all = widest_paths(g, static_cast<int>(n), 3, 1'000'000);
    REQUIRE(length_of(g, all.front()) == doctest::Approx(least));
    REQUIRE(
        std::is_sorted(all.begin(), all.end(), [&](const auto& a, const auto& b) { return length_of(g, a) < length_of(g, b); }));
    const auto two = widest_paths(g, 2, 1, 1'000'000);
    REQUIRE(two.size() == 1);
    equal += length_of(g, two.front()) < least * (1 + 1e-9);
  }
  CHECK(equal > 80);
}

TEST_CASE("paths avoid missing links, and a search that may not go on has one") {
  device_graph chain{std::vector<double>(4, 1.0), std::vector<double>(16)};
  const auto join = [&](std::size_t a, std::size_t b) { chain.edges[a * 4 + b] = chain.edges[b * 4 + a] = 1; };
  join(2, 0);
  join(0, 3);
  join(3, 1);
  CHECK(widest_paths(chain, 4, 1, 1000) == std::vector<std::vector<std::size_t>>{{1, 3, 0, 2}});
  chain.edges.assign(16, 0.0);
  CHECK(widest_paths(chain, 4, 1, 1000).empty());
  random_source random(1);
  CHECK(widest_paths(random_widths(random, 40), 2, 1, 100).size() == 1);
}
