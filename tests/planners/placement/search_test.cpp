// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/placement/search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../../sanitizer_share.hpp"
#include "random_chain.hpp"

using namespace hetsched;
using hetsched::test::sanitizer_share;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// What stages are worth, their memory and devices checked by the way: as the one of all ways that is the same.
struct best_of_all {
  double sum = never, slowest = never, interval = never, iteration = never;
};

best_of_all try_all(const placement_chain& chain, int microbatches) {
  best_of_all best;
  placement_test::every_way(chain, [&](const placed_chain& c) {
    best.sum = std::min(best.sum, c.sum_s);
    best.slowest = std::min(best.slowest, c.slowest_s);
    best.interval = std::min(best.interval, std::max(c.slowest_s, c.sum_s / microbatches));
    best.iteration = std::min(best.iteration, c.sum_s + (microbatches - 1) * c.slowest_s);
  });
  return best;
}

bool is_a_way(const placement_chain& chain, const placed_chain& found) {
  bool met = false;
  placement_test::every_way(chain, [&](const placed_chain& c) {
    met = met ||
          (c.stages == found.stages && std::abs(c.sum_s - found.sum_s) < 1e-9 && std::abs(c.slowest_s - found.slowest_s) < 1e-9);
  });
  return met;
}

}  // namespace

TEST_CASE("placement: every objective is that of the best of all ways") {
  random_source random(7);
  int possible = 0;
  for (int trial = 0; trial < 2000 / sanitizer_share; ++trial) {
    CAPTURE(trial);
    const auto chain = placement_test::random_chain(random, {});
    const int microbatches = random.integer(1, 12);
    const auto best = try_all(chain, microbatches);
    possible += best.sum < never;
    const auto check = [&](const std::string& objective, const placement_found& found, double wanted, auto value_of) {
      CAPTURE(objective);
      REQUIRE(found.complete);
      REQUIRE(found.best.has_value() == wanted < never);
      if (!found.best) return;
      CHECK(found.value == doctest::Approx(wanted).epsilon(1e-9));
      CHECK(found.bound == doctest::Approx(wanted).epsilon(1e-9));
      CHECK(value_of(*found.best) == doctest::Approx(wanted).epsilon(1e-9));
      CHECK(is_a_way(chain, *found.best));
    };
    check("sum", least_sum(chain), best.sum, [](const placed_chain& c) { return c.sum_s; });
    check("slowest", least_slowest(chain), best.slowest, [](const placed_chain& c) { return c.slowest_s; });
    check("interval", least_interval(chain, microbatches), best.interval,
          [&](const placed_chain& c) { return std::max(c.slowest_s, c.sum_s / microbatches); });
    check("iteration", least_iteration(chain, microbatches), best.iteration,
          [&](const placed_chain& c) { return c.sum_s + (microbatches - 1) * c.slowest_s; });
  }
  CHECK(possible > 1000 / sanitizer_share);
  CHECK(possible < 2000 / sanitizer_share);
}

TEST_CASE("placement: of two stages, the slow device gets what the fast one cannot hold") {
  placement_chain chain{.layers = 4, .pools = {{1, -1}, {1, -1}}};
  chain.kinds = {{0, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 0, 0, 0, 0}, {0, 0, 0, 0}, {.room = 3}},
                 {1, {0, 2, 4, 6, 8}, {0, 1, 2, 3, 4}, {0, 0, 0, 0, 0}, {0, 0, 0, 0}, {.room = 3}}};
  chain.transfers.assign(3 * 4, {0.5, 0.5});
  const auto found = least_sum(chain);
  REQUIRE(found.best);
  CHECK(found.value == 5.5);
  // Three on the fast device, one on the slow one: 3 s; two and two would take 4 s.
  CHECK(least_slowest(chain).value == 3);
  chain.kinds[0].memory.room = 1;
  chain.kinds[1].memory.room = 2;
  const auto none = least_sum(chain);
  CHECK_FALSE(none.best);
  CHECK(none.complete);
}

TEST_CASE("placement: twins are used one after the other, at no loss") {
  random_source random(11);
  for (int trial = 0; trial < 200 / sanitizer_share; ++trial) {
    CAPTURE(trial);
    auto chain = placement_test::random_chain(random, {.layers = 5, .pools = 1, .devices = 2});
    // Two more pools like the first; within one a transfer takes a fifth.
    const auto kinds = chain.kinds;
    for (int copy = 1; copy < 3; ++copy) {
      chain.pools.push_back(chain.pools[0]);
      for (auto k : kinds) {
        k.pool = copy;
        chain.kinds.push_back(k);
      }
    }
    chain.transfers.clear();
    const double seconds = random.uniform(0.1, 2);
    for (int b = 0; b + 1 < chain.layers; ++b)
      for (const auto& a : chain.kinds)
        for (const auto& z : chain.kinds) {
          const double t = a.pool == z.pool ? seconds / 5 : seconds;
          chain.transfers.push_back({t, t});
        }
    const auto apart = least_sum(chain);
    const auto slowest_apart = least_slowest(chain);
    chain.pools[1].twin = 0;
    chain.pools[2].twin = 1;
    const auto twins = least_sum(chain);
    const auto slowest_twins = least_slowest(chain);
    REQUIRE(apart.best.has_value() == twins.best.has_value());
    if (!apart.best) continue;
    CHECK(twins.value == doctest::Approx(apart.value).epsilon(1e-9));
    CHECK(slowest_twins.value == doctest::Approx(slowest_apart.value).epsilon(1e-9));
    CHECK(apart.value == doctest::Approx(try_all(chain, 1).sum).epsilon(1e-9));
  }
}

TEST_CASE("placement: a search that is stopped says so, and its bound holds") {
  random_source random(5);
  int stopped = 0;
  for (int trial = 0; trial < 20; ++trial) {
    CAPTURE(trial);
    const auto chain = placement_test::random_chain(random, {.layers = 12, .pools = 3, .devices = 3});
    const auto whole = least_iteration(chain, 32);
    if (!whole.best) continue;
    int asked = 0;
    const auto until = [&](std::int64_t) { return ++asked < 5; };
    const auto part = least_iteration(chain, 32, until);
    if (part.complete) continue;
    ++stopped;
    CHECK(part.bound <= whole.value * (1 + 1e-9));
    CHECK(part.value >= whole.value * (1 - 1e-9));
  }
  CHECK(stopped > 0);
}

TEST_CASE("placement: many stages of few layers each are found at once") {
  // Rents lead to long stages first; each that is still to come needs a layer.
  constexpr int pools = 16, each = 8, layers = 120, stages = 100;
  placement_chain chain{.layers = layers};
  for (int p = 0; p < pools; ++p) {
    chain.pools.push_back({each, p - 1});
    placement_kind kind{.pool = p, .temporary = std::vector<double>(layers, 0.0), .memory = {.room = 40}};
    for (int l = 0; l <= layers; ++l) {
      kind.seconds_before.push_back(l);
      kind.state_before.push_back(l);
      kind.in_flight_before.push_back(0);
    }
    chain.kinds.push_back(std::move(kind));
  }
  chain.transfers.assign((layers - 1) * pools * pools, {0.01, 0.01});
  chain.stages = stages;
  const auto at_once = [](std::int64_t) { return false; };
  const auto found = least_sum(chain, at_once);
  REQUIRE(found.best);
  CHECK(found.best->stages.size() == stages);
  CHECK(found.labels < 50'000);
}
