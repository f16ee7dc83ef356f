// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp/detail/period_bound.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "../brute_force.hpp"
#include "../random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct sharpness {
  int finite = 0, infinite = 0, told_infinite = 0;
  double share = 0;  // of the least latency, summed up
};

/// The bounds of an instance against all of its plans, at periods in no order.
template <class Costs>
void compare(const instance& given, const Costs& costs, random_source& random, sharpness& met) {
  INFO(text(given));
  price_book book(given.hardware, costs);
  auto problem = detail::make_interop_problem(book);
  if (problem.placements.empty()) return;
  const detail::stage_prices table(book, problem);
  detail::mark_dominated(problem, table);
  detail::period_bound bounds(problem, table);
  const double all = brute_force_latency(given.hardware, costs, never);
  if (all == never) return;
  for (int n = 0; n < 8; ++n) {
    // The latencies of good plans, and a good deal less.
    const double period = n == 0 ? 1e300 : all * random.uniform(0, random.integer(0, 1) == 0 ? 0.4 : 1.2);
    CAPTURE(period);
    const double least = brute_force_latency(given.hardware, costs, period);
    const double bound = bounds.latency(period);
    CAPTURE(least);
    CAPTURE(bound);
    REQUIRE(bound >= 0);
    REQUIRE(bound <= least * (1 + 1e-9));
    // A call that looks for less has nothing more to say of it.
    const double within = least < never ? least * random.uniform(0.5, 2) : random.uniform(0.5, 2) * all;
    const double enough = bounds.latency(period, within);
    REQUIRE((enough <= least * (1 + 1e-9) || within <= least));
    if (least == never) {
      ++met.infinite;
      met.told_infinite += bound == never;
    } else if (least > 0) {
      ++met.finite;
      met.share += bound / least;
    }
  }
}

void compare_many(std::uint64_t seed, int instances, const instance_limits& limits, double least_share) {
  random_source random(seed);
  sharpness met;
  for (int n = 0; n < instances / sanitizer_share; ++n) {
    CAPTURE(seed);
    CAPTURE(n);
    auto given = random_instance(random, limits);
    if (limits.rich) enrich(given, random);
    // Some ways between subclusters are missing.
    if (random.integer(0, 1) == 0)
      for (const auto& a : given.costs.rows)
        for (const auto& b : given.costs.rows)
          if (a.where.mesh.subcluster != b.where.mesh.subcluster && (a.price_class * 5 + b.price_class) % 3 == 0)
            for (int j = 0; j + 1 < given.costs.layers; ++j) given.costs.price(a.price_class, b.price_class, j) = never;
    if (n % 2 == 0)
      compare(given, additive_costs{given.costs}, random, met);
    else
      compare(given, by_node<additive_costs>{{given.costs}}, random, met);
  }
  CAPTURE(seed);
  CAPTURE(met.finite);
  CAPTURE(met.infinite);
  CAPTURE(met.told_infinite);
  CAPTURE(met.share / met.finite);
  CHECK(met.finite > (sanitizer_share == 1 ? instances : instances / sanitizer_share / 2));  // few instances vary more
  CHECK(met.infinite > instances / sanitizer_share / 2);
  CHECK(met.share >= least_share * met.finite);
}

}  // namespace

TEST_CASE("no plan that keeps a period has less latency than its bound: two subclusters") {
  compare_many(3001, 400, {.layers = 6, .devices = 6}, 0.5);
  compare_many(3002, 300, {.layers = 6, .devices = 6, .prices_by_degrees = true, .rich = true}, 0.5);
}

TEST_CASE("no plan that keeps a period has less latency than its bound: one subcluster of many devices") {
  compare_many(3003, 200, {.layers = 6, .subclusters = 1, .devices = 16}, 0.5);
}

TEST_CASE("no plan that keeps a period has less latency than its bound: more subclusters than are listed") {
  compare_many(3004, 200, {.layers = 5, .subclusters = 4, .devices = 2}, 0.3);
  compare_many(3005, 100, {.layers = 4, .subclusters = 6, .devices = 2}, 0.2);
}
