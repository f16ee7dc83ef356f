// SPDX-License-Identifier: Apache-2.0
// Searches that are stopped: there is always a plan, more time never makes it worse, and the bound is one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <hetsched/planners/interop_dp.hpp>

#include "brute_force.hpp"
#include "plan_checks.hpp"
#include "random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

constexpr int share = bulk_share;

struct tally {
  int feasible = 0, better = 0, incomplete = 0;
  int bounds_above = 0;  // of searches that were stopped: above the best plan
};

/// Stops after 0, 1, 3, 10, ... calls of progress, until the search ends by itself.
template <class Costs>
void stop_after_calls(const instance& given, const Costs& costs, tally& met) {
  INFO(text(given));
  auto problem = given.problem;
  int asked = 0, allowed = 0;
  problem.progress = [&](const search_progress&) { return asked++ < allowed; };
  const auto again = [&](int calls) {
    allowed = calls;
    asked = 0;
    return interop_dp(given.hardware, costs, problem, given.options);
  };
  const auto whole = again(1 << 30);
  const int all = asked;
  std::vector<int> stops{0, 1, 3};
  for (int calls = 10; calls < all; calls *= 3) stops.push_back(calls);
  stops.push_back(all);

  std::vector<plan> plans;
  for (const int calls : stops) {
    CAPTURE(calls);
    const auto found = again(calls);
    if (!whole) {
      REQUIRE(!found);
      REQUIRE(!found.why_not().reason.empty());
      continue;
    }
    REQUIRE(found);
    REQUIRE(found->evidence->objective_value == found->predicted.iteration_s);
    REQUIRE(asked <= calls + 1);
    check_plan(given.hardware, costs, problem, given.options, *found);
    if (!plans.empty()) REQUIRE(found->predicted.iteration_s <= plans.back().predicted.iteration_s);
    met.incomplete += !found->evidence->complete;
    plans.push_back(*found);
  }
  if (!whole) return;
  ++met.feasible;
  REQUIRE(plans.back() == *whole);
  met.better += whole->predicted.iteration_s < plans.front().predicted.iteration_s * (1 - 1e-9);
  for (const auto& p : plans) met.bounds_above += p.evidence->objective_bound > whole->predicted.iteration_s * (1 + 1e-9);
}

}  // namespace

namespace {

/// Random instances of all kinds.
tally stop_many(std::uint64_t seed, instance_limits limits, double enumeration = 0) {
  random_source random(seed);
  tally met;
  for (int n = 0; n < 300 / share; ++n) {
    CAPTURE(n);
    limits.prices_by_degrees = n % 3 == 0;
    auto given = random_instance(random, limits);
    if (n % 2 == 0) enrich(given, random);
    given.options.warmup = n % 2 == 0 ? warmup_rule::exact : static_cast<warmup_rule>(n / 2 % 4);
    given.options.near_tie = n % 5 == 0 ? 0 : interop_options{}.near_tie;
    given.options.gap = n % 3 == 0 ? 0 : interop_options{}.gap;
    given.options.enumeration = enumeration;
    // Exact programs of small problems end them; without, all parts of the search have their turn.
    given.options.effort = std::vector<double>{100, 0, 1e-4, 1e-2}[static_cast<std::size_t>(random.integer(0, 3))];
    // Cuts at which one subcluster cannot be left.
    if (n % 4 == 0)
      for (const auto& a : given.costs.rows)
        for (const auto& b : given.costs.rows)
          for (int j = n % 3; j + 1 < given.costs.layers; j += 3)
            if (a.where.mesh.subcluster != b.where.mesh.subcluster) given.costs.price(a.price_class, b.price_class, j) = never;
    if (n % 10 == 9)
      stop_after_calls(given, random_intervals(random, given.costs), met);
    else if (n % 2 == 0)
      stop_after_calls(given, by_node<additive_costs>{{given.costs}}, met);
    else
      stop_after_calls(given, additive_costs{given.costs}, met);
  }
  return met;
}

}  // namespace

TEST_CASE("always a plan, and never worse with more steps") {
  const auto met = stop_many(3201, {.layers = 12, .subclusters = 3, .devices = 6});
  CHECK(met.feasible >= (sanitizer_share == 1 ? 200 : 100) / share);  // few instances vary more
  if (sanitizer_share == 1) CHECK(met.better >= 40 / share);
  CHECK(met.incomplete >= (sanitizer_share == 1 ? 200 : 100) / share);
}

TEST_CASE("no bound above the best plan of any search, where all plans are looked at in the end") {
  CHECK(stop_many(3207, {.layers = 6, .subclusters = 2, .devices = 4}, 2000).bounds_above == 0);
}

TEST_CASE("whatever the effort, the bound lies below the least objective with updates, and complete searches prove it") {
  random_source random(3203);
  int feasible = 0, complete = 0, told = 0;
  for (int n = 0; n < 1500 / share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 7, .subclusters = 2, .devices = 5, .prices_by_degrees = n % 3 == 0});
    if (n % 2 == 0) enrich(given, random);
    given.options.warmup = n % 2 == 0 ? warmup_rule::exact : static_cast<warmup_rule>(n / 2 % 4);
    given.options.effort = std::vector<double>{0, 1e-5, 1e-4, 1e-2}[static_cast<std::size_t>(random.integer(0, 3))];
    CAPTURE(given.options.effort);
    INFO(text(given));
    const auto check = [&](const auto& costs) {
      const double least = brute_force_objective(given.hardware, costs, as_brute(given.problem, given.options));
      const auto found = interop_dp(given.hardware, costs, given.problem, given.options);
      REQUIRE(found.has_value() == (least < never));
      if (!found) return;
      ++feasible;
      check_plan(given.hardware, costs, given.problem, given.options, *found);
      // Small updates are bounded by the least of a first stage, others by each plan's own.
      const double some = least + least_update(given.hardware, costs);
      const double proven = brute_force_objective(given.hardware, costs, as_brute(given.problem, given.options), true);
      CAPTURE(sum_bound(*found));
      CAPTURE(proven);
      REQUIRE(sum_bound(*found) <= proven * (1 + 1e-9));
      REQUIRE(found->evidence->objective_bound <= found->predicted.iteration_s);
      told += sum_bound(*found) > 0.9 * std::min(proven, found->predicted.iteration_s);
      complete += near(sum_bound(*found), std::min(proven, found->predicted.iteration_s)) ||
                  near(sum_bound(*found), std::min(some, found->predicted.iteration_s));
    };
    if (n % 3 == 0)
      check(by_node<additive_costs>{{given.costs}});
    else
      check(additive_costs{given.costs});
  }
  CAPTURE(feasible);
  CAPTURE(complete);
  CAPTURE(told);
  CHECK(feasible >= 500 / share);
  CHECK(complete >= feasible / 20);
  CHECK(complete <= feasible * 9 / 10);
  CHECK(told >= feasible / 2);
}

TEST_CASE("a search ends when it cannot beat what is known, and not before") {
  random_source random(3202);
  int ended = 0, early = 0, feasible = 0;
  for (int n = 0; n < 200 / share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 10, .subclusters = 2, .devices = 6});
    given.options.warmup = warmup_rule::exact;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto whole = interop_dp(given.hardware, costs, given.problem, given.options);
    if (!whole) continue;
    ++feasible;
    // A worse plan is known: the best one is found all the same.
    given.problem.beat = whole->predicted.iteration_s * random.uniform(1.0001, 2);
    const auto better = interop_dp(given.hardware, costs, given.problem, given.options);
    REQUIRE(better);
    if (better->evidence->complete) REQUIRE(better->pipelines == whole->pipelines);
    early += better->predicted.iteration_s > whole->predicted.iteration_s * (1 + 1e-9);
    // One that no plan can beat is known.
    given.problem.beat = std::min(whole->evidence->sum_bound, whole->evidence->objective_bound) * random.uniform(0.1, 0.999);
    auto unproven = given.options;  // a bound on iterations would close many all the same
    unproven.prove = false;
    const auto beaten = interop_dp(given.hardware, costs, given.problem, unproven);
    REQUIRE(beaten);
    // Where all plans are counted, nothing stays open.
    auto counting = given.options;
    counting.enumeration = interop_options{}.enumeration;
    const auto counted = interop_dp(given.hardware, costs, given.problem, counting);
    REQUIRE(counted);
    REQUIRE(counted->evidence->complete);
    if (beaten->evidence->complete) continue;
    ++ended;
    REQUIRE(beaten->evidence->sum_bound > given.problem.beat);
  }
  CHECK(feasible >= 50 / share);
  CAPTURE(feasible);
  CHECK(ended >= 20 / share);
  CHECK(early * 20 <= feasible);  // see above: an iteration may be below its bound
}
