// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/parallel_pipelines/detail/pipeline_kinds.hpp>

#include "../../plan/stub_costs.hpp"
#include "all_sets.hpp"
#include "brute_sets.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("of all sets of pipelines, the fastest, on small clusters") {
  random_source random(4101);
  int feasible = 0, several = 0, better = 0, complete = 0;
  for (int n = 0; n < 2000 / bulk_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, n % 8 == 0 ? 64 : 12);
    // Updates wait for reductions, also for those that take no time: without them pipelines share nothing.
    for (auto& r : given.costs.rows) r.update_s = 0;
    if (n % 4 == 1) share_parameters(given, random);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices_of(given.hardware));
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    REQUIRE(found.has_value() == (least < never));
    if (!found) {
      REQUIRE(!found.why_not().reason.empty());
      continue;
    }
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(least);
    REQUIRE(as_fast(found->predicted.iteration_s, least));
    complete += found->evidence->complete;
    several += found->pipelines.size() > 1;
    if (n % 4 == 0)
      better += found->predicted.iteration_s <
                interop_dp(given.hardware, costs, given.problem, given.options)->predicted.iteration_s * 0.999;
  }
  constexpr int some = 2000 / bulk_share;
  CHECK(feasible > some / 2);
  CHECK(several > some / 5);
  CHECK(better > some / 20);
  MESSAGE(complete << " of " << feasible << " complete");
  CHECK(complete > feasible * 3 / 4);
}

TEST_CASE("reductions between pipelines count: of all sets, the fastest") {
  random_source random(4102);
  int feasible = 0, ruled = 0, open = 0, several = 0, complete = 0;
  for (int n = 0; n < 600 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 3, .subclusters = 2, .devices = 2});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, 8);
    INFO(text(given));
    with_reductions<additive_costs> costs{{given.costs}, 0, 0};
    if (given.costs.rows.empty()) continue;
    const double scale = sum_of_layers(costs, {0, given.costs.layers}, given.costs.rows[0].where).total_s();
    costs.each_s = random.uniform(0, 0.5) * scale;
    costs.across_s = costs.each_s * random.uniform(1, 5);
    CAPTURE(costs.each_s);
    CAPTURE(costs.across_s);
    const double least = all_sets(given, costs, [](double seconds, const auto&) { return seconds; });
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    REQUIRE(found.has_value() == (least < never));
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(least);
    REQUIRE(as_fast(found->predicted.iteration_s, least));
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    complete += found->evidence->complete;
    several += found->pipelines.size() > 1;
    if (n % 8 != 0) continue;
    // All plans of one rule are not all plans: there the bound decides.
    given.options.warmup = warmup_rule::one_f_one_b;
    const auto other = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    if (!other) continue;
    ++ruled;
    for (const auto& line : other->pipelines) REQUIRE(line.schedule.name == "1f1b");
    REQUIRE(other->predicted.iteration_s >= least * (1 - 1e-9));
    const auto& told = *other->evidence;
    REQUIRE(told.objective_bound <= least * (1 + 1e-9));
    if (told.complete) REQUIRE(told.objective_value <= least * (1 + 1e-6));
    open += !told.complete;
  }
  MESSAGE(feasible << " feasible, " << several << " of several pipelines, " << complete << " complete");
  CHECK(several > 100 / sanitizer_share);
  CHECK(complete == feasible);
  CHECK(ruled > 20 / sanitizer_share);
  CHECK(open > 0);
}

TEST_CASE("without counting, no bound lies above the best set") {
  random_source random(4103);
  int feasible = 0, close = 0, back = 0;
  double worst = 1;
  for (int n = 0; n < 660 / (sanitizer_share * sanitizer_share); ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, n % 8 == 0 ? 64 : 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    if (n % 4 == 1) share_parameters(given, random);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto devices = devices_of(given.hardware);
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::periods).least(devices);
    const double played = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices);
    auto options = as_parallel(given.options);
    options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE(found.has_value() == (played < never));
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->evidence->objective_bound);
    REQUIRE(found->evidence->objective_bound <= std::max(least, found->predicted.iteration_s) * (1 + 1e-9));
    if (hetsched::detail::comes_back(*found)) {
      ++back;
      auto any = as_brute(given);
      any.comes_back = true;
      const double all = brute_sets(given.hardware, costs, any, measure::periods).least(devices);
      CAPTURE(all);
      REQUIRE(found->evidence->objective_bound <= std::max(all, found->predicted.iteration_s) * (1 + 1e-9));
      REQUIRE(found->predicted.iteration_s >=
              brute_sets(given.hardware, costs, any, measure::played).least(devices) * (1 - 1e-9));
    }
    const auto one = interop_dp(given.hardware, costs, given.problem, given.options);
    if (one) REQUIRE(found->predicted.iteration_s <= one->predicted.iteration_s * (1 + 1e-9));
    close += found->predicted.iteration_s <= played * 1.02;
    worst = std::max(worst, found->predicted.iteration_s / played);
  }
  MESSAGE(close << " of " << feasible << " within 2 % of the best set; worst " << worst << "; " << back
                << " come back to a subcluster");
  CHECK(close > feasible * 3 / 4);
  if (sanitizer_share == 1) CHECK(back > 0);
}

namespace {

/// Each subcluster slower than the one before, and sums of gradients as a pipeline of all microbatches has them.
struct summing_costs : stub_costs {
  std::vector<double> slowness;
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto c = stub_costs::layer(index, where);
    for (double* time : {&c.forward_s, &c.backward_s, &c.sums_s}) *time *= at(slowness, where.mesh.subcluster);
    return c;
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const { return sum_of_layers(*this, range, where); }
};

}  // namespace

TEST_CASE("several pipelines add up fewer gradients than one: sets are worth what they add, and bounds stay bounds") {
  random_source random(4107);
  int several = 0, complete = 0;
  double worst = 1;
  for (int n = 0; n < 200 / sanitizer_share; ++n) {
    CAPTURE(n);
    const int microbatches = random.integer(2, 8), layers = random.integer(1, 3);
    CAPTURE(microbatches);
    const auto hardware = plain_cluster(2, 1);
    summing_costs costs{};
    costs.slowness = {1, random.uniform(1, 3)};
    costs.sync_s = random.uniform(0, 0.5);
    double work_s = 0, sum_s = 0;  // of a microbatch; of an addition
    for (int l = 0; l < layers; ++l) {
      const double own_s = random.uniform(0, n % 4 < 2 ? 0.4 : 2), later = 1 - 1.0 / microbatches;
      costs.layers.push_back({.forward_s = random.uniform(0.5, 1),
                              .backward_s = random.uniform(1, 2),
                              .weight_bytes = mib,
                              .activation_bytes = mib,
                              .sums_s = own_s * later});
      work_s += costs.layers.back().total_s();
      costs.layers.back().backward_s += own_s * later;
      sum_s += own_s;
      if (l > 0) costs.boundaries.emplace_back(random.uniform(0, 0.5));
    }
    // Pipelines of one stage, on one subcluster or on both, in closed form.
    const auto alone_s = [&](int k, int m) { return m == 0 ? 0 : at(costs.slowness, k) * (m * work_s + (m - 1) * sum_s); };
    double least = 1e300;
    for (int m = 0; m <= microbatches; ++m)
      least = std::min(
          least, std::max(alone_s(0, m), alone_s(1, microbatches - m)) + (m > 0 && m < microbatches ? costs.sync_s * layers : 0));
    auto options = parallel_pipelines_options{};
    if (n % 2 == 0) options.listed = 0;
    const auto found = parallel_pipelines(hardware, costs, {.microbatches = microbatches}, options);
    REQUIRE(found);
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(least);
    // Sums as of one pipeline guide the search; where they are a part of the work that trainers have, it is hardly misled, if it
    // counts.
    if (n % 4 == 1) {
      CHECK(found->predicted.iteration_s <= least * 1.03);
      worst = std::max(worst, found->predicted.iteration_s / least);
    }
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    if (found->pipelines.size() == 2)
      CHECK(found->predicted.iteration_s ==
            doctest::Approx(
                costs.sync_s * layers +
                std::max(alone_s(found->pipelines[0].stages[0].devices[0].mesh.subcluster, found->pipelines[0].microbatches),
                         alone_s(found->pipelines[1].stages[0].devices[0].mesh.subcluster, found->pipelines[1].microbatches))));
    if (found->evidence->complete) CHECK(found->predicted.iteration_s <= least * (1 + 1e-3));
    several += found->pipelines.size() > 1;
    complete += found->evidence->complete;
    // What is beaten by less than sums of gradients is not left out.
    const auto again = parallel_pipelines(hardware, costs, {.microbatches = microbatches, .beat = least * 1.001}, options);
    if (again) CHECK(again->evidence->objective_bound <= least * (1 + 1e-9));
    CHECK((again || found->predicted.iteration_s > least * 1.001));
  }
  MESSAGE(several << " of several pipelines, " << complete << " complete; worst " << worst);
  CHECK(several > 50 / sanitizer_share);
}

TEST_CASE("stopped at any time there is a plan, more steps never make it worse, and the bound is one") {
  random_source random(4104);
  int feasible = 0, incomplete = 0;
  for (int n = 0; n < 120 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, 16);
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const additive_costs costs{given.costs};
    auto options = as_parallel(given.options);
    if (n % 2 == 0) options.listed = 0;
    const auto whole = parallel_pipelines(given.hardware, costs, given.problem, options);
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices_of(given.hardware));
    double before = never;
    for (const int calls : {0, 1, 2, 5, 20, 100}) {
      CAPTURE(calls);
      int asked = 0;
      auto problem = given.problem;
      problem.progress = [&](const search_progress&) { return asked++ < calls; };
      const auto found = parallel_pipelines(given.hardware, costs, problem, options);
      REQUIRE(found.has_value() == whole.has_value());
      if (!found) break;
      check(given, costs, *found);
      REQUIRE(found->predicted.iteration_s <= before);
      before = found->predicted.iteration_s;
      if (options.listed > 0) REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
      incomplete += !found->evidence->complete;
    }
    feasible += whole.has_value();
  }
  CHECK(feasible > 60 / sanitizer_share);
  CHECK(incomplete > 60 / sanitizer_share);
}

// What interop_dp looks at first.
template <class Instance, class Costs>
outcome<plan> first_pipeline(const Instance& given, const Costs& costs) {
  auto problem = given.problem;
  problem.progress = [](const search_progress&) { return false; };
  return interop_dp(given.hardware, costs, problem, given.options);
}

TEST_CASE("plans of others are improved by small changes without a search") {
  random_source random(4107);
  int better = 0, begun = 0;
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto first = first_pipeline(given, costs);
    auto options = as_parallel(given.options);
    options.search = pipelines_search::changes;
    const auto none = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE_FALSE(none);
    CHECK(none.why_not().why == refusal::kind::infeasible);
    if (!first) continue;
    ++begun;
    options.start = {first->pipelines};
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE(found);
    CHECK(as_fast(found->predicted.iteration_s, first->predicted.iteration_s));
    better += found->predicted.iteration_s < 0.999 * first->predicted.iteration_s;
    CHECK(found->evidence->objective_bound == 0);
    CHECK_FALSE(found->evidence->complete);
  }
  CHECK(begun > 20);
  CHECK(better > begun / 10);
}

TEST_CASE("a search for equal copies alone is no worse than one pipeline, and proves nothing") {
  random_source random(4111);
  constexpr int instances = sanitizer_share > 1 ? 10 : 40;
  int several = 0, found_any = 0, best = 0;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 5, .subclusters = 2, .devices = 6});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(8, 32);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto one = first_pipeline(given, costs);
    auto options = as_parallel(given.options);
    options.search = pipelines_search::copies;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE((found || !one));
    if (!found) CHECK(found.why_not().reason == one.why_not().reason);
    if (!found) continue;
    ++found_any;
    check(given, costs, *found);
    if (one) CHECK(found->predicted.iteration_s <= one->predicted.iteration_s * (1 + 1e-9));
    CHECK(found->evidence->objective_bound == 0);
    CHECK_FALSE(found->evidence->complete);
    several += found->pipelines.size() > 1;
    for (const auto& line : found->pipelines)
      CHECK(std::equal(line.stages.begin(), line.stages.end(), found->pipelines.front().stages.begin(),
                       found->pipelines.front().stages.end(), [](const auto& x, const auto& y) {
                         return x.layers == y.layers && x.degrees == y.degrees && x.where().mesh == y.where().mesh;
                       }));
    options.search = pipelines_search::whole;
    const auto whole = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE(whole);
    best += found->predicted.iteration_s < 1.02 * whole->predicted.iteration_s;
  }
  CHECK(found_any > instances / 2);
  CHECK(several > instances / 8);
  CHECK(best > found_any / 4);
}

TEST_CASE("others are asked for plans if those that are known come near what is to be beaten") {
  random_source random(4109);
  int near = 0, far = 0, free = 0;
  for (int n = 0; n < 40; ++n) {
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    const additive_costs costs{given.costs};
    const auto first = first_pipeline(given, costs);
    if (!first) continue;
    auto options = as_parallel(given.options);
    options.start = {first->pipelines};
    const auto asked = [&](double behind, double within) {
      int count = 0;
      given.problem.beat = first->predicted.iteration_s / behind;
      options.more_within = within;
      options.more = [&] { return ++count, std::vector<std::vector<pipeline_plan>>{}; };
      (void)parallel_pipelines(given.hardware, costs, given.problem, options);
      return count;
    };
    near += asked(1.02, 1.03);
    far += asked(1.04, 1.03);
    free += asked(1.04, infinity);
  }
  CHECK(near > 0);
  CHECK(far == 0);
  CHECK(free > 0);
}

TEST_CASE("what is not too far behind is looked at shortly, and what is further behind is left") {
  random_source random(4110);
  int better = 0, better_than_copies = 0, not_left = 0;
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    const additive_costs costs{given.costs};
    const auto first = first_pipeline(given, costs);
    if (!first) continue;
    auto options = as_parallel(given.options);
    options.start = {first->pipelines};
    options.listed = 0;
    const auto found_s = [&](double behind, double distant = 1.35) {
      options.distant = distant;
      given.problem.beat = first->predicted.iteration_s / behind;
      const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
      return found ? found->predicted.iteration_s : first->predicted.iteration_s;
    };
    better += found_s(1.3) < found_s(1.4) * 0.999;
    better_than_copies += found_s(1.3) < found_s(1.3, infinity) * 0.999;
    CHECK(found_s(1.4) <= first->predicted.iteration_s * (1 + 1e-9));
    not_left += found_s(1.4) < first->predicted.iteration_s * 0.999;
  }
  CHECK(better > 0);
  CHECK(not_left < 4);            // pipelines that the bound leaves open are played all the same
  CHECK(better_than_copies > 4);  // one without the short search: copies follow higher sums, too
}

TEST_CASE("a known objective ends a search that cannot beat it, and hides nothing that does") {
  random_source random(4105);
  int better = 0, beaten = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto devices = devices_of(given.hardware);
    const double played = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices);
    // Bounds speak of latency and periods.
    const double least = std::max(played, brute_sets(given.hardware, costs, as_brute(given), measure::periods).least(devices));
    if (!(least < never)) continue;
    const bool can_win = n % 2 == 0, counted = n % 4 < 2;
    given.problem.beat = can_win ? least * 1.05 : played * 0.95;
    auto options = as_parallel(given.options);
    if (!counted) options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    if (!found) {
      REQUIRE(!can_win);
      continue;
    }
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(found->evidence->objective_bound);
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    if (counted && can_win) REQUIRE(as_fast(found->predicted.iteration_s, played));
    // Where latency and periods alone show that it cannot win.
    beaten += !can_win && found->evidence->sum_bound >= given.problem.beat;
    better += can_win && found->predicted.iteration_s <= given.problem.beat;
  }
  MESSAGE(better << " better, " << beaten << " beaten");
  CHECK(better > 100 / sanitizer_share);
  CHECK(beaten >= 30 / sanitizer_share);
}
