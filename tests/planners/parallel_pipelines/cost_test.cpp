// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/planners/parallel_pipelines.hpp>

#include "all_sets.hpp"
#include "brute_sets.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// An instance whose devices have prices.
instance priced_instance(random_source& random, const instance_limits& limits, int most_microbatches) {
  auto given = random_instance(random, limits);
  given.problem.use_all_devices = false;
  given.problem.objective = plan_objective::cost;
  given.problem.microbatches = random.integer(1, most_microbatches);
  given.problem.microbatch_size = random.integer(1, 3);
  for (auto& s : given.hardware.subclusters) s.device.price_per_hour = random.uniform(0.5, 8);
  return given;
}

/// Where nodes are rented whole, the least: for the fewest nodes that have so many devices.
double money_per_sample(const instance& given, double seconds, const std::vector<int>& devices) {
  double per_hour = 0;
  for (std::size_t k = 0; k < devices.size(); ++k) {
    const auto& s = given.hardware.subclusters[k];
    per_hour += *s.price_per_hour(devices[k], (devices[k] + s.devices_per_node - 1) / s.devices_per_node);
  }
  return seconds > given.problem.deadline_s
             ? never
             : seconds * per_hour / 3600 / (given.problem.microbatches * given.problem.microbatch_size);
}

/// The least money over all boxes of devices: sets that share nothing are the fastest of their box.
double least_money(const instance& given, brute_sets& sets) {
  double least = never;
  const auto all = devices_of(given.hardware);
  std::vector<int> box(all.size(), 0);
  for (bool more = true; more;) {
    least = std::min(least, money_per_sample(given, sets.least(box), box));
    more = false;
    for (std::size_t k = all.size(); k-- > 0 && !more;) {
      more = ++box[k] <= all[k];
      if (!more) box[k] = 0;
    }
  }
  return least;
}

}  // namespace

TEST_CASE("of all sets of pipelines, the cheapest that is fast enough: 1,000 small clusters") {
  random_source random(4201);
  int feasible = 0, late = 0, several = 0, slower = 0, complete = 0;
  constexpr int instances = 1000 / (sanitizer_share * sanitizer_share);
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto given = priced_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0},
                                 n % 8 == 0 ? 64 : 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    const additive_costs costs{given.costs};
    brute_sets sets(given.hardware, costs, as_brute(given), measure::played);
    const double fastest = sets.least(devices_of(given.hardware));
    if (n % 4 > 0 && fastest > 0 && fastest < never) given.problem.deadline_s = fastest * random.uniform(0.95, 3);
    CAPTURE(given.problem.deadline_s);
    INFO(text(given));
    const double least = least_money(given, sets);
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    // More warm-ups than the exact rule's, and pipelines that come back, may keep deadlines that brute force does not.
    REQUIRE((found || !(least < never)));
    if (found && !(least < never)) continue;
    if (!found) {
      const bool deadline = found.why_not().reason.find("deadline") != std::string::npos;
      REQUIRE(deadline == (fastest < never));
      late += deadline;
      continue;
    }
    ++feasible;
    check(given, costs, *found);
    CAPTURE(objective_of(*found));
    CAPTURE(least);
    REQUIRE(as_fast(objective_of(*found), least));
    complete += found->evidence->complete;
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    several += found->pipelines.size() > 1;
    slower += found->predicted.iteration_s > fastest * 1.001;
  }
  CHECK(feasible > instances / 2);
  CHECK(late >= instances / 100);
  CHECK(several > instances / 20);
  CHECK(slower > instances / 10);
  CHECK(complete > feasible * 3 / 4);
}

TEST_CASE("the cheapest where reductions between pipelines count") {
  random_source random(4202);
  int feasible = 0, several = 0, complete = 0;
  for (int n = 0; n < 300 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = priced_instance(random, {.layers = 3, .subclusters = 2, .devices = 2}, 8);
    if (given.costs.rows.empty()) continue;
    with_reductions<additive_costs> costs{{given.costs}, 0, 0};
    const double scale = sum_of_layers(costs, {0, given.costs.layers}, given.costs.rows[0].where).total_s();
    costs.each_s = random.uniform(0, 0.3) * scale;
    costs.across_s = costs.each_s * random.uniform(1, 5);
    const double fastest = all_sets(given, costs, [](double seconds, const auto&) { return seconds; });
    if (n % 4 > 0 && fastest > 0 && fastest < never) given.problem.deadline_s = fastest * random.uniform(1, 2);
    INFO(text(given));
    CAPTURE(costs.each_s);
    CAPTURE(costs.across_s);
    CAPTURE(given.problem.deadline_s);
    const double least =
        all_sets(given, costs, [&](double seconds, const auto& used) { return money_per_sample(given, seconds, used); });
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    REQUIRE(found.has_value() == (least < never));
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    CAPTURE(objective_of(*found));
    CAPTURE(least);
    REQUIRE(as_fast(objective_of(*found), least));
    complete += found->evidence->complete;
    several += found->pipelines.size() > 1;
  }
  CHECK(feasible > 100 / sanitizer_share);
  CHECK(complete > feasible * 3 / 4);
  CHECK(several > 10 / sanitizer_share);
}

TEST_CASE("without counting, plans are within the deadline and no bound lies above the cheapest set") {
  random_source random(4203);
  int feasible = 0, close = 0, missed = 0;
  double worst = 1, worst_gap = 1;
  for (int n = 0; n < 400 / (sanitizer_share * sanitizer_share); ++n) {
    CAPTURE(n);
    auto given = priced_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0},
                                 n % 8 == 0 ? 64 : 12);
    if (n % 10 == 0) given.hardware.subclusters[0].device.price_per_hour = 0;
    for (auto& r : given.costs.rows) r.update_s = 0;
    const additive_costs costs{given.costs};
    brute_sets played(given.hardware, costs, as_brute(given), measure::played);
    const double fastest = played.least(devices_of(given.hardware));
    if (n % 4 > 0 && fastest > 0 && fastest < never) given.problem.deadline_s = fastest * random.uniform(1, 4);
    CAPTURE(given.problem.deadline_s);
    INFO(text(given));
    auto options = as_parallel(given.options);
    options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    const double least = least_money(given, played);
    if (!found) {
      // What is left out is told: no plan was found, not that there is none.
      REQUIRE((!(least < never) || found.why_not().reason.find("was found") != std::string::npos));
      missed += least < never;
      continue;
    }
    ++feasible;
    check(given, costs, *found);
    CAPTURE(objective_of(*found));
    CAPTURE(least);
    if (given.options.warmup != warmup_rule::exact) REQUIRE(objective_of(*found) >= least * (1 - 1e-9));
    REQUIRE(found->evidence->objective_bound <= std::min(least, objective_of(*found)) * (1 + 1e-9));
    if (n % 10 > 0) REQUIRE((found->evidence->objective_bound > 0) == (least > 0));
    close += objective_of(*found) <= least * 1.02;
    if (least > 0) worst = std::max(worst, objective_of(*found) / least);
    if (found->evidence->objective_bound > 0) worst_gap = std::max(worst_gap, least / found->evidence->objective_bound);
  }
  MESSAGE(close << " of " << feasible << " within 2 % of the cheapest set, worst " << worst << "; worst bound " << worst_gap
                << "; " << missed << " missed");
  CHECK(close > feasible * 3 / 4);
  CHECK(missed <= feasible / 20);
}

TEST_CASE(
    "nodes that are rented whole: the plan is paid by the nodes that it touches, and no bound lies above the cheapest set") {
  random_source random(4205);
  int feasible = 0, close = 0, whole = 0, other = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = priced_instance(random, {.layers = 5, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0}, 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    const additive_costs costs{given.costs};
    brute_sets sets(given.hardware, costs, as_brute(given), measure::played);
    const double fastest = sets.least(devices_of(given.hardware));
    if (n % 4 > 0 && fastest > 0 && fastest < never) given.problem.deadline_s = fastest * random.uniform(1, 3);
    auto options = as_parallel(given.options);
    if (n % 2 == 0) options.listed = 0;
    const auto by_device = parallel_pipelines(given.hardware, costs, given.problem, options);
    for (auto& s : given.hardware.subclusters)
      if (random.integer(0, 2) > 0)
        s.price_per_node_hour = s.devices_per_node * *s.device.price_per_hour * random.uniform(0.5, 1);
    INFO(text(given));
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    // By hand: the nodes that have a device with a stage.
    double per_hour = 0;
    for (int k = 0; k < static_cast<int>(given.hardware.subclusters.size()); ++k) {
      const auto& s = given.hardware.subclusters[static_cast<std::size_t>(k)];
      std::vector<bool> used(static_cast<std::size_t>(s.device_count()));
      for (const auto& line : found->pipelines)
        for (const auto& stage : line.stages)
          for (const auto& g : stage.devices)
            for (int d = 0; g.mesh.subcluster == k && d < g.mesh.device_count(); ++d)
              used[static_cast<std::size_t>(g.first_device + d)] = true;
      for (int node = 0; node < s.nodes; ++node) {
        const auto from = used.begin() + node * s.devices_per_node;
        const auto devices = std::count(from, from + s.devices_per_node, true);
        if (devices == 0) continue;
        per_hour += s.price_per_node_hour ? *s.price_per_node_hour : static_cast<double>(devices) * *s.device.price_per_hour;
      }
    }
    const double samples = given.problem.microbatches * given.problem.microbatch_size;
    REQUIRE(near(objective_of(*found), found->predicted.iteration_s * per_hour / 3600 / samples));
    const double least = least_money(given, sets);
    if (given.options.warmup != warmup_rule::exact) REQUIRE(objective_of(*found) >= least * (1 - 1e-9));
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    close += objective_of(*found) <= least * 1.05;
    whole += given.hardware.subclusters[0].price_per_node_hour.has_value();
    other += by_device && by_device->pipelines != found->pipelines;
  }
  MESSAGE(close << " of " << feasible << " within 5 % of what the fewest nodes would cost");
  CHECK(feasible > 200 / sanitizer_share);
  CHECK(close > feasible * 3 / 4);
  CHECK(whole > feasible / 3);
  CHECK(other > feasible / 20);
}

TEST_CASE("a frontier from the fastest plan to the cheapest: each the cheapest of its deadline") {
  random_source random(4204);
  int feasible = 0, long_ones = 0;
  for (int n = 0; n < 60 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = priced_instance(random, {.layers = 6, .subclusters = 2, .devices = 4}, 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    const additive_costs costs{given.costs};
    INFO(text(given));
    brute_sets sets(given.hardware, costs, as_brute(given), measure::played);
    const double fastest = sets.least(devices_of(given.hardware));
    const auto found = time_cost_frontier(given.hardware, costs, given.problem, as_parallel(given.options), 12);
    REQUIRE(found.has_value() == (fastest < never));
    if (!found || !(fastest > 0)) continue;
    ++feasible;
    REQUIRE(as_fast(found->front().predicted.iteration_s, fastest));
    REQUIRE(as_fast(*found->back().predicted.cost_per_sample, least_money(given, sets)));
    REQUIRE(found->size() <= 12);
    for (const auto& p : *found) {
      given.problem.deadline_s = p.predicted.iteration_s * (1 + 1e-9);
      REQUIRE(as_fast(*p.predicted.cost_per_sample, least_money(given, sets)));
    }
    long_ones += found->size() > 2;
  }
  CHECK(feasible > 30 / sanitizer_share);
  CHECK(long_ones > 10 / sanitizer_share);
}
