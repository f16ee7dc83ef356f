// SPDX-License-Identifier: Apache-2.0
// Also of rented_search.hpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <hetsched/planners/parallel_pipelines/detail/counted.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rented_search.hpp>

#include "../../interop_dp/plan_checks.hpp"
#include "../../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::detail;
using namespace hetsched::test;

namespace {

/// What a pipeline costs, from its stages: infinity if it does not keep the period.
double cost_of_pipeline(const interop_problem& problem, const stage_prices& table, double low, double high,
                        const device_prices& prices, std::span<const critical_layer> critical,
                        const std::vector<interop_stage>& stages) {
  const auto bare = search_pipeline(problem, table, stages);
  double cost = 0, before = 0, end = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    const auto& placed = problem.placements[static_cast<std::size_t>(s.placement)];
    const auto k = static_cast<std::size_t>(placed.subcluster);
    const int at = static_cast<int>(i);
    const double t = bare.compute_s(at);
    if (t > high || table.memory(s.placement, s.layers.first, s.layers.last, 1) > placed.capacity) return never;
    cost += t + placed.devices * (prices.rent[k] * std::max(low, t) + prices.fee[k]);
    for (const auto& c : critical)
      if (s.layers.first <= c.layer && c.layer < s.layers.last)
        end += c.share * (table.updates()(s.placement, s.layers.first, s.layers.last) - before);
    before += t - table.forward(s.placement, s.layers.first, s.layers.last);
    if (i + 1 == stages.size()) break;
    if (bare.slower_way_s(at) > high) return never;
    cost += bare.round_trip_s(at);
    before += bare.slower_way_s(at);
  }
  return cost + end;
}

template <class Costs>
void compare(const instance& given, const Costs& costs, random_source& random, int& met, int& searched) {
  price_book book(given.hardware, costs);
  auto problem = make_interop_problem(book);
  if (problem.placements.empty()) return;
  const stage_prices table(book, problem);
  mark_dominated(problem, table);
  const end_table ends(costs, problem);
  listed_pipelines all(problem, table);
  if (!all.list(20'000)) return;
  rented_path path(problem, table, ends);
  double work = 0;
  for (int l = 0; l < problem.layers; ++l) work += table.time(0, l, l + 1);
  for (int n = 0; n < 4; ++n) {
    const double low = work * random.uniform(0.05, 1), high = low * random.uniform(1, 2);
    std::vector<critical_layer> critical;
    double share = 1;
    for (int l = n == 0 ? 0 : random.integer(0, problem.layers - 1); l < problem.layers; l += random.integer(1, 3)) {
      critical.push_back({l, share * random.uniform(0.3, 1)});
      share -= critical.back().share;
    }
    critical.back().share += share;
    device_prices prices;
    for (std::size_t k = 0; k < problem.devices.size(); ++k) {
      prices.rent.push_back(random.integer(0, 3) == 0 ? 0 : random.uniform(0, 4));
      prices.fee.push_back(random.integer(0, 1) == 0 ? 0 : random.uniform(0, 1) * work);
    }
    double least = never;
    for (int box = 0; box < all.boxes(); ++box)
      for (const auto& line : all.of(box))
        least = std::min(least, cost_of_pipeline(problem, table, low, high, prices, critical, line.stages));
    const double found = path.solve(low, high, prices, false, critical);
    CAPTURE(low);
    CAPTURE(high);
    CAPTURE(critical.size());
    REQUIRE(found <= least * (1 + 1e-9));
    if (!(found < never)) continue;
    // Its own pipeline costs what it says; where that is one of all, it is the cheapest.
    REQUIRE(near(found, cost_of_pipeline(problem, table, low, high, prices, critical, path.stages())));
    for (int box = 0; box < all.boxes(); ++box)
      for (const auto& line : all.of(box))
        if (line.stages == path.stages()) {
          ++met;
          REQUIRE(near(found, least));
        }
    // What the program finds keeps the warm-ups that the period needs, in memory.
    const warmup_algebra algebra(warmup_rule::exact);
    rented_search search(problem, table, ends, algebra, given.problem.microbatches);
    for (const auto& s : search.solve(path, low, high, prices, false, found * 1.2, 1'000'000)) {
      ++searched;
      REQUIRE(s.cost >= found * (1 - 1e-9));
      const auto column = column_of(problem, table, ends, algebra, s.stages, given.problem.microbatches, false);
      REQUIRE(column);
      REQUIRE(column->period <= high * (1 + 1e-9));
    }
  }
}

}  // namespace

TEST_CASE("a rented path costs no more than any pipeline, and what its own stages cost") {
  random_source random(4301);
  int met = 0, searched = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    const auto given = random_instance(random, {.layers = 5, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    INFO(text(given));
    if (n % 4 == 0)
      compare(given, opaque_costs{given.costs}, random, met, searched);
    else
      compare(given, additive_costs{given.costs}, random, met, searched);
  }
  CHECK(met > 200 / sanitizer_share);
  CHECK(searched > 200 / sanitizer_share);
}
