// SPDX-License-Identifier: Apache-2.0
// Partitioners against all partitions of tiny graphs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/hexiscale/device_graph.hpp>

namespace hetsched::test {

/// Machines of a few kinds behind two switches.
inline device_graph random_graph(random_source& random, int most) {
  const auto n = static_cast<std::size_t>(random.integer(3, most));
  device_graph g{std::vector<double>(n), std::vector<double>(n * n)};
  const double kinds[] = {71, 165, 312};
  for (auto& v : g.vertices) v = kinds[random.integer(0, 2)] * (random.integer(0, 1) == 0 ? 8 : 4);
  std::vector<int> site(n);
  for (auto& s : site) s = random.integer(0, 1);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < a; ++b)
      g.edges[a * n + b] = g.edges[b * n + a] = (site[a] == site[b] ? 10 : 1) * random.uniform(0.5, 2);
  return g;
}

struct best_partition {
  bool any = false;    // keeps the balance
  double cut = 0;      // the least, or the largest, of those that do
  double balance = 0;  // the least of all
};

/// All partitions into parts none of which is empty.
inline best_partition all_partitions(const device_graph& g, const partition_request& asked) {
  best_partition best{.balance = 1e300};
  std::vector<int> part(g.size(), 0);
  const auto visit = [&](auto&& self, std::size_t v, int used) -> void {
    if (v == g.size()) {
      if (used < asked.parts) return;
      const double cut = cut_of(g, part), balance = balance_of(g, part, asked.parts);
      best.balance = std::min(best.balance, balance);
      if (balance > asked.balance * (1 + 1e-9)) return;
      if (!best.any || (asked.maximise ? cut > best.cut : cut < best.cut)) best.cut = cut;
      best.any = true;
      return;
    }
    for (int p = 0; p < std::min(used + 1, asked.parts); ++p) {
      part[v] = p;
      self(self, v + 1, std::max(used, p + 1));
    }
  };
  visit(visit, 0, 0);
  return best;
}

struct partition_tally {
  int all = 0, possible = 0, balanced = 0, optimal = 0;
  double worst = 1;  // cut over the least one, or the largest over it
};

/// Asks a partitioner for many partitions; every one has to have all its parts.
template <class Partition>
partition_tally compare_partitions(Partition&& partition, int graphs, std::uint64_t seed) {
  random_source random(seed);
  partition_tally tally;
  for (int i = 0; i < graphs; ++i) {
    const auto g = random_graph(random, 8);
    const partition_request asked{.parts = random.integer(2, std::min(4, static_cast<int>(g.size()))),
                                  .balance = random.uniform(1.05, 1.6),
                                  .maximise = random.integer(0, 1) == 1,
                                  .seed = static_cast<std::uint64_t>(i % 3)};
    const auto part = partition(g, asked);
    REQUIRE(part == partition(g, asked));
    REQUIRE(part.size() == g.size());
    for (const int p : part) REQUIRE((p >= 0 && p < asked.parts));
    ++tally.all;
    const auto best = all_partitions(g, asked);
    if (std::set(part.begin(), part.end()).size() < static_cast<std::size_t>(asked.parts)) continue;
    const double cut = cut_of(g, part), balance = balance_of(g, part, asked.parts);
    REQUIRE(balance >= best.balance * (1 - 1e-9));
    if (!best.any) continue;
    ++tally.possible;
    if (balance > asked.balance * (1 + 1e-9)) continue;
    ++tally.balanced;
    const double worse = asked.maximise ? best.cut / cut : cut / best.cut;
    REQUIRE(worse >= 1 - 1e-9);
    tally.optimal += worse < 1 + 1e-9;
    tally.worst = std::max(tally.worst, worse);
  }
  return tally;
}

}  // namespace hetsched::test
