// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hetauto.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../interop_dp/brute_force.hpp"
#include "../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Whether a plan has one placement in each subcluster.
bool is_uniform(const plan& p) {
  const auto& stages = p.pipelines.front().stages;
  return std::all_of(stages.begin(), stages.end(), [&](const stage_plan& a) {
    return std::all_of(stages.begin(), stages.end(), [&](const stage_plan& b) {
      return a.devices.front().mesh.subcluster != b.devices.front().mesh.subcluster || a.where() == b.where();
    });
  });
}

struct tally {
  int plans = 0, refusals = 0, across = 0, mixed = 0, near = 0;
};

template <class Costs>
void compare(random_source& random, int count, tally& counts) {
  for (int i = 0; i < count; ++i) {
    instance_limits limits;
    limits.layers = 5;
    limits.subclusters = 2;
    limits.devices = 4;
    limits.rich = i % 4 == 0;
    const auto given = random_instance(random, limits);
    const Costs costs{given.costs};
    INFO(text(given));
    brute_force_options brute{.rule = given.options.warmup,
                              .microbatches = given.problem.microbatches,
                              .epsilon = given.options.epsilon,
                              .use_all = given.problem.use_all_devices,
                              .uniform = true};
    const double best = brute_force_iteration(given.hardware, costs, brute);
    hetauto_exact_options options{.warmup = given.options.warmup, .epsilon = given.options.epsilon, .gap = 0};
    const auto found = hetauto_exact(given.hardware, costs, given.problem, options);
    CHECK(found.has_value() == (best < never));
    if (!found) {
      CHECK(found.why_not().why == refusal::kind::infeasible);
      ++counts.refusals;
      continue;
    }
    ++counts.plans;
    counts.across += found->pipelines.front().stages.front().devices.front().mesh.subcluster !=
                     found->pipelines.front().stages.back().devices.front().mesh.subcluster;
    CHECK(is_uniform(*found));
    // The exact rule's are the fewest warm-ups: more may be faster.
    if (given.options.warmup == warmup_rule::exact)
      CHECK(found->predicted.iteration_s <= best * (1 + 1e-9));
    else
      CHECK(found->predicted.iteration_s == doctest::Approx(best).epsilon(1e-9));
    const double least = found->predicted.iteration_s;
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);
    CHECK(found->evidence->objective_bound <= least * (1 + 1e-9));
    CHECK(found->evidence->sum_bound == doctest::Approx(least).epsilon(1e-9));
    brute.uniform = false;
    counts.mixed += brute_force_iteration(given.hardware, costs, brute) < best * (1 - 1e-9);
    brute.uniform = true;

    // A search that does not count plans bounds its objective.
    options.enumeration = 0;
    const double objective = brute_force_objective(given.hardware, costs, brute, true);
    const auto bounded = hetauto_exact(given.hardware, costs, given.problem, options);
    REQUIRE(bounded.has_value());
    CHECK(bounded->predicted.iteration_s >= least * (1 - 1e-9));
    CHECK(bounded->evidence->sum_bound <= objective * (1 + 1e-9));
    CHECK(bounded->evidence->objective_bound <= least * (1 + 1e-9));
    counts.near += bounded->predicted.iteration_s <= least * 1.001;

    // No heuristic has a better plan.
    hetauto_options quick{.schedule = std::string(schedule_name(given.options.warmup))};
    quick.search.rollouts = 50;
    if (const auto tried = hetauto(given.hardware, costs, given.problem, quick))
      CHECK(tried->predicted.iteration_s >= least * (1 - 1e-9));
  }
}

}  // namespace

TEST_CASE("hetauto_exact has the best plan with one placement in each subcluster") {
  random_source random(161);
  tally counts;
  const int count = 1000 / (sanitizer_share > 1 ? 2 * sweep_share : sweep_share);
  compare<additive_costs>(random, count, counts);
  compare<opaque_costs>(random, count, counts);
  MESSAGE(counts.plans, " plans, ", counts.refusals, " refusals, ", counts.near, " within 0.1 % without counting");
  if (sanitizer_share == 1) {
    CHECK(counts.plans > 1000 / sweep_share);
    CHECK(counts.refusals > 50 / sweep_share);
    CHECK(counts.across > 100 / sweep_share);
    CHECK(counts.mixed > 50 / sweep_share);
    CHECK(counts.near > counts.plans * 9 / 10);
  }
}

TEST_CASE("hetauto_exact leaves sums that are far above what is to be beaten") {
  random_source random(7219);
  std::int64_t all = 0, near = 0;
  int compared = 0;
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto given = random_instance(random, {.layers = 8, .subclusters = 2, .devices = 4});
    const additive_costs costs{given.costs};
    hetauto_exact_options options{.enumeration = 0, .prove = false};
    const auto free = hetauto_exact(given.hardware, costs, given.problem, options);
    if (!free) continue;
    const auto periods = [](const plan& p) { return p.evidence->work.at(0).second; };
    auto asked = given.problem;
    asked.beat = free->predicted.iteration_s;
    options.hope = 2;
    const auto hoped = hetauto_exact(given.hardware, costs, asked, options);
    REQUIRE(hoped);
    CHECK(hoped->predicted.iteration_s <= free->predicted.iteration_s * (1 + 1e-9));
    asked.beat /= 10;
    const auto beaten = hetauto_exact(given.hardware, costs, asked, options);
    if (!beaten) continue;
    ++compared;
    all += periods(*free);
    near += periods(*beaten);
  }
  CHECK(compared > 10);
  CHECK(near < all / 2);
}

TEST_CASE("hetauto_exact refuses what it cannot do") {
  random_source random(7);
  instance_limits limits;
  limits.layers = 3;
  auto given = random_instance(random, limits);
  const additive_costs costs{given.costs};
  CHECK_THROWS_AS((void)hetauto_exact(given.hardware, costs, given.problem, {.gap = -1}), input_error);
  CHECK_THROWS_AS((void)hetauto_exact(given.hardware, costs, given.problem, {.periods = 0}), input_error);
  CHECK_THROWS_AS((void)hetauto_exact(given.hardware, costs, given.problem, {.hope = -1}), input_error);
  given.hardware.subclusters.resize(11, given.hardware.subclusters.front());
  const auto none = hetauto_exact(given.hardware, costs, given.problem);
  REQUIRE_FALSE(none);
  CHECK(none.why_not().why == refusal::kind::not_applicable);
  CHECK(none.why_not().reason.find("ten at most; this cluster has 11") != std::string::npos);
}
