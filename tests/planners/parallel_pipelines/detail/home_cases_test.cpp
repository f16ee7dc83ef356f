// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/parallel_pipelines/detail/home_cases.hpp>

#include <doctest/doctest.h>

#include <algorithm>

#include <hetsched/planners/parallel_pipelines.hpp>

#include "../all_sets.hpp"
#include "../brute_sets.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("gradients that go to another subcluster: no bound lies above the best set, and most reach it") {
  random_source random(6120);
  int feasible = 0, proved = 0;
  for (int n = 0; n < 300 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 4, .subclusters = 2, .devices = 2});
    if (given.costs.rows.empty() || given.hardware.subclusters.size() < 2) continue;
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(2, 8);
    with_reductions<additive_costs> costs{{given.costs}, 0, 0};
    const double scale = sum_of_layers(costs, {0, given.costs.layers}, given.costs.rows[0].where).total_s();
    costs.each_s = random.uniform(0, 0.1) * scale;
    costs.across_s = costs.each_s * random.uniform(2, 40);
    CAPTURE(costs.each_s);
    CAPTURE(costs.across_s);
    INFO(text(given));
    const auto seconds_of = [](double seconds, const auto&) { return seconds; };
    const double least = all_sets(given, costs, seconds_of, true);
    auto options = as_parallel(given.options);
    options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    if (!(least < never) || !found) continue;
    ++feasible;
    check(given, costs, *found);
    const double bound = std::min(found->evidence->sum_bound, found->predicted.iteration_s);
    CAPTURE(least);
    CAPTURE(bound);
    CHECK(bound <= least * (1 + 1e-9));
    proved += bound >= least * 0.99;
  }
  MESSAGE(proved << " of " << feasible << " bounds within 1 % of the best set");
  if (sanitizer_share > 1) return;
  CHECK(feasible > 100);
  CHECK(proved > 60);
}

TEST_CASE("where nothing can go from one subcluster to another in time, each pipeline fits into one of them alone") {
  random_source random(6121);
  int feasible = 0;
  double gaps = 0;
  for (int n = 0; n < 60 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    if (given.costs.rows.empty() || given.hardware.subclusters.size() < 2) continue;
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(4, 32);
    for (auto& r : given.costs.rows) r.update_s = 0;
    double longest = 0;
    for (const auto& r : given.costs.rows)
      for (const auto& l : r.layer) longest = std::max(longest, l.total_s());
    for (const auto& a : given.costs.rows)
      for (const auto& b : given.costs.rows)
        for (int boundary = 0; a.where.mesh.subcluster != b.where.mesh.subcluster && boundary + 1 < given.costs.layers;
             ++boundary)
          given.costs.price(a.price_class, b.price_class, boundary) = 100 * longest;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::periods).least(devices_of(given.hardware));
    auto options = as_parallel(given.options);
    options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    if (!(least < never) || !found) continue;
    ++feasible;
    const double bound = std::min(found->evidence->sum_bound, found->predicted.iteration_s);
    CHECK(bound <= std::max(least, found->predicted.iteration_s) * (1 + 1e-9));
    gaps += found->predicted.iteration_s / bound - 1;
  }
  if (sanitizer_share > 1) return;
  MESSAGE("gap of " << 100 * gaps / feasible << " % on average of " << feasible);
  CHECK(feasible > 30);
  CHECK(gaps / feasible < 0.5);  // with a mean of paths in each: 16
}
