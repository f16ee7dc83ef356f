// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

#include "brute_force.hpp"
#include "plan_checks.hpp"
#include "random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct tally {
  int all = 0, infeasible = 0, memory_bound = 0;
};

/// The planner against the brute force, on one instance.
template <class Costs>
void compare(const instance& given, const Costs& costs, tally& counts, std::optional<std::vector<int>> order = {}) {
  INFO(text(given));
  INFO(text(costs));
  auto brute = as_brute(given.options);
  brute.order = std::move(order);
  const double best = brute_force_objective(given.hardware, costs, brute);
  const auto found = interop_dp(given.hardware, costs, given.options);
  ++counts.all;
  CAPTURE(best);
  const std::string reason = found ? "" : found.why_not().reason;
  CAPTURE(reason);
  REQUIRE(found.has_value() == (best < never));
  if (!found) {
    ++counts.infeasible;
    REQUIRE(found.why_not().why == refusal::kind::infeasible);
    check_reason(given.hardware, costs, brute, found.why_not().reason);
    return;
  }
  CAPTURE(found->evidence.objective_s);
  REQUIRE(near(found->evidence.objective_s, best));
  REQUIRE(found->evidence.complete);
  REQUIRE(found->evidence.objective_bound_s <= found->evidence.objective_s);
  REQUIRE(near(found->evidence.objective_bound_s, found->evidence.objective_s, 1e-12));
  check_plan(given.hardware, costs, given.options, *found);
  brute.memory_factor = never;
  counts.memory_bound += brute_force_objective(given.hardware, costs, brute) < best * (1 - 1e-9);
}

enum class costs_as { additive, opaque, intervals };

/// Random instances under one rule; a good share of them infeasible, and of the others bound by memory.
void compare_many(std::uint64_t seed, int instances, warmup_rule rule, const instance_limits& limits = {},
                  costs_as kind = costs_as::additive) {
  random_source random(seed);
  tally counts;
  for (int n = 0; n < instances / sanitizer_share; ++n) {
    CAPTURE(seed);
    CAPTURE(n);
    auto given = random_instance(random, limits);
    given.options.warmup = rule;
    switch (kind) {
      case costs_as::additive:
        compare(given, additive_costs{given.costs}, counts);
        break;
      case costs_as::opaque:
        compare(given, opaque_costs{given.costs}, counts);
        break;
      case costs_as::intervals:
        compare(given, random_intervals(random, given.costs), counts);
        break;
    }
  }
  CAPTURE(counts.infeasible);
  CAPTURE(counts.memory_bound);
  if (counts.all < 250) return;  // too few for shares
  CHECK(counts.infeasible * (kind == costs_as::intervals ? 7 : 5) >= counts.all);
  CHECK(counts.memory_bound * 7 >= counts.all);
}

/// A cluster of one-node subclusters of equal devices, one device each unless told otherwise.
cluster plain_cluster(int subclusters, int devices = 1) {
  cluster hardware;
  for (int k = 0; k < subclusters; ++k) {
    subcluster s{"s" + std::to_string(k), {}, 1, devices, {0, 1e9}, {0, 1e9}};
    s.device = {.name = "d", .peak_flops = {1e12, 0, 1e12, 0}, .memory_bytes = 1'000'000, .memory_bandwidth = 1e12};
    hardware.subclusters.push_back(s);
  }
  return hardware;
}

/// Costs for plain_cluster: `layers` equal layers that take `forward_s` and 2 * forward_s on every placement.
additive_costs plain_costs(const cluster& hardware, int layers, double forward_s, double transfer_s) {
  additive_costs costs;
  costs.layers = layers;
  costs.classes = 1;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
    for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
      costs.rows.push_back({{mesh, {1, 1, mesh.device_count()}},
                            0,
                            std::vector<stage_cost>(static_cast<std::size_t>(layers), {forward_s, 2 * forward_s, 10, 1}),
                            0});
  costs.prices.assign(static_cast<std::size_t>(layers - 1), transfer_s);
  return costs;
}

}  // namespace

TEST_CASE("random instances equal the brute force: H-1F1B") { compare_many(1001, 5000, warmup_rule::h1f1b); }
TEST_CASE("random instances equal the brute force: exact warm-ups") { compare_many(1002, 4000, warmup_rule::exact); }
TEST_CASE("random instances equal the brute force: 1F1B") { compare_many(1003, 1000, warmup_rule::one_f_one_b); }
TEST_CASE("random instances equal the brute force: Eager-1F1B") { compare_many(1004, 1000, warmup_rule::eager); }

TEST_CASE("models that are not additive, and such that do not say so, equal the brute force") {
  compare_many(1011, 500, warmup_rule::h1f1b, {}, costs_as::intervals);
  compare_many(1012, 300, warmup_rule::exact, {}, costs_as::intervals);
  compare_many(1013, 150, warmup_rule::one_f_one_b, {}, costs_as::intervals);
  compare_many(1014, 150, warmup_rule::eager, {}, costs_as::intervals);
  compare_many(1015, 300, warmup_rule::h1f1b, {}, costs_as::opaque);
}

TEST_CASE("transfer prices that depend on degrees equal the brute force") {
  compare_many(1021, 500, warmup_rule::h1f1b, {.prices_by_degrees = true});
  compare_many(1022, 300, warmup_rule::exact, {.prices_by_degrees = true});
  compare_many(1023, 200, warmup_rule::h1f1b, {.prices_by_degrees = true}, costs_as::intervals);
}

TEST_CASE("three subclusters equal the brute force") {
  compare_many(1031, 300, warmup_rule::h1f1b, {.layers = 6, .subclusters = 3, .devices = 3});
  compare_many(1032, 150, warmup_rule::exact, {.layers = 6, .subclusters = 3, .devices = 3});
}

TEST_CASE("additive fast path equals the general path; naming the classes of prices changes nothing") {
  random_source random(1041);
  int feasible = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 40, .subclusters = 3, .devices = 6, .prices_by_degrees = n % 2 == 0});
    given.options.warmup = n % 4 == 3    ? warmup_rule::exact
                           : n % 40 == 1 ? warmup_rule::eager
                           : n % 40 == 2 ? warmup_rule::one_f_one_b
                                         : warmup_rule::h1f1b;
    INFO(text(given));
    const auto fast = interop_dp(given.hardware, additive_costs{given.costs}, given.options);
    const auto general = interop_dp(given.hardware, opaque_costs{given.costs}, given.options);
    const auto named = interop_dp(given.hardware, with_classes<additive_costs>{{given.costs}}, given.options);
    REQUIRE(fast.has_value() == general.has_value());
    REQUIRE(fast.has_value() == named.has_value());
    if (!fast) continue;
    ++feasible;
    REQUIRE(near(fast->evidence.objective_s, general->evidence.objective_s, 1e-12));
    REQUIRE(near(fast->evidence.objective_s, named->evidence.objective_s, 1e-12));
    check_plan(given.hardware, additive_costs{given.costs}, given.options, *fast);
    check_plan(given.hardware, opaque_costs{given.costs}, given.options, *general);
  }
  CHECK(feasible >= 200 / sanitizer_share);
}

TEST_CASE("a fixed order of subclusters equals the brute force in that order") {
  random_source random(1051);
  tally counts;
  int other_order = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = n % 4 == 0 ? 5 : 3, .devices = 2});
    const int k = static_cast<int>(given.hardware.subclusters.size());
    std::vector<int> order(static_cast<std::size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    if (n % 4 == 1) {
      given.options.order = subcluster_order::as_given;
    } else {
      // Falling memory per FLOP/s; with more than four subclusters this is the default.
      given.options.order = k > 4 ? subcluster_order::automatic : subcluster_order::memory_to_compute;
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        const auto ratio = [&](int i) {
          const auto& d = given.hardware.subclusters[static_cast<std::size_t>(i)].device;
          return static_cast<double>(d.memory_bytes) / d.flops(precision::fp16);
        };
        return ratio(a) > ratio(b);
      });
    }
    compare(given, additive_costs{given.costs}, counts, order);
    auto any_order = as_brute(given.options);
    auto this_order = any_order;
    this_order.order = order;
    const additive_costs costs{given.costs};
    other_order +=
        brute_force_objective(given.hardware, costs, any_order) < brute_force_objective(given.hardware, costs, this_order);
  }
  CHECK(counts.infeasible < counts.all);
  CHECK(other_order * 10 >= counts.all);  // the order matters
}

TEST_CASE("all orders of three subclusters: the best of the six fixed ones") {
  random_source random(1061);
  int feasible = 0;
  for (int n = 0; n < 60 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 20, .subclusters = 3, .devices = 4});
    given.options.warmup = n % 3 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    INFO(text(given));
    const auto found = interop_dp(given.hardware, additive_costs{given.costs}, given.options);
    double best = never;
    std::vector<int> order(given.hardware.subclusters.size());  // order[i]: the subcluster that comes i-th
    std::iota(order.begin(), order.end(), 0);
    do {
      instance permuted = given;
      permuted.options.order = subcluster_order::as_given;
      std::vector<int> position(order.size());
      for (std::size_t i = 0; i < order.size(); ++i) {
        permuted.hardware.subclusters[i] = given.hardware.subclusters[static_cast<std::size_t>(order[i])];
        position[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
      }
      for (auto& r : permuted.costs.rows) r.where.mesh.subcluster = position[static_cast<std::size_t>(r.where.mesh.subcluster)];
      const auto fixed = interop_dp(permuted.hardware, additive_costs{permuted.costs}, permuted.options);
      if (fixed) best = std::min(best, fixed->evidence.objective_s);
    } while (std::next_permutation(order.begin(), order.end()));
    REQUIRE(found.has_value() == (best < never));
    if (!found) continue;
    ++feasible;
    REQUIRE(near(found->evidence.objective_s, best, 1e-12));
  }
  CHECK(feasible >= 20 / sanitizer_share);
}

TEST_CASE("progress: the bound rises to the best plan, which falls") {
  random_source random(1071);
  int calls = 0, feasible = 0;
  for (int n = 0; n < 200 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 12, .subclusters = 2, .devices = 6});
    given.options.warmup = n % 3 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    INFO(text(given));
    search_progress last{-1, never, 0};
    given.options.progress = [&](const search_progress& now) {
      REQUIRE(now.evaluations == last.evaluations + 1);
      REQUIRE(now.best_s <= last.best_s);
      REQUIRE(now.bound_s >= last.bound_s);
      REQUIRE(now.bound_s <= now.best_s);
      last = now;
      ++calls;
      return true;
    };
    const auto found = interop_dp(given.hardware, additive_costs{given.costs}, given.options);
    if (!found) continue;
    ++feasible;
    REQUIRE(last.evaluations >= 0);
    REQUIRE(found->evidence.evaluations == last.evaluations + 1);
    REQUIRE(found->evidence.objective_s <= last.best_s);
    REQUIRE(found->evidence.objective_bound_s >= last.bound_s);
    REQUIRE(found->evidence.labels > 0);
  }
  CHECK(calls > feasible);
  CHECK(feasible >= 50 / sanitizer_share);
}

TEST_CASE("a stopped search: a refusal, or the best plan so far between its bound and the optimum") {
  random_source random(1081);
  int refused = 0, kept = 0, not_yet_best = 0;
  for (int n = 0; n < 100; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 12, .subclusters = 2, .devices = 6});
    given.options.warmup = n % 3 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto complete = interop_dp(given.hardware, costs, given.options);
    if (!complete) continue;
    const double best = complete->evidence.objective_s;
    for (std::int64_t allowed = 0; allowed < complete->evidence.evaluations; allowed += 1 + allowed / 4) {
      CAPTURE(allowed);
      given.options.progress = [&](const search_progress& now) { return now.evaluations < allowed; };
      const auto found = interop_dp(given.hardware, costs, given.options);
      if (!found) {
        ++refused;
        REQUIRE(found.why_not().why == refusal::kind::stopped);
        REQUIRE(!found.why_not().reason.empty());
        continue;
      }
      REQUIRE(allowed > 0);
      ++kept;
      const auto& evidence = found->evidence;
      REQUIRE(!evidence.complete);
      REQUIRE(evidence.evaluations == allowed);
      REQUIRE(evidence.objective_bound_s <= best * (1 + 1e-12));
      REQUIRE(evidence.objective_s >= best * (1 - 1e-12));
      not_yet_best += evidence.objective_s > best * (1 + 1e-9);
      check_devices(given.hardware, found->pipelines.front(), given.options.use_all_devices);
    }
  }
  CHECK(refused > 0);
  CHECK(kept > 0);
  CHECK(not_yet_best > 0);
}

TEST_CASE("among near-ties the full prediction decides") {
  const auto hardware = plain_cluster(2);
  auto costs = plain_costs(hardware, 1, 1, 0);  // one layer: 3 s
  costs.rows[0].update_s = 10;                  // the second device is 0.05 % slower, but updates at once
  costs.rows[1].layer[0].forward_s = 1.0015;
  interop_options options;
  options.microbatches = 4;

  options.near_tie = 0;
  const auto strict = interop_dp(hardware, costs, options);
  REQUIRE(strict);
  CHECK(strict->pipelines[0].stages[0].where.mesh.subcluster == 0);
  CHECK(strict->evidence.objective_s == doctest::Approx(12).epsilon(1e-12));
  CHECK(strict->predicted.iteration_s == doctest::Approx(22).epsilon(1e-12));

  options.near_tie = 0.002;
  const auto relaxed = interop_dp(hardware, costs, options);
  REQUIRE(relaxed);
  CHECK(relaxed->pipelines[0].stages[0].where.mesh.subcluster == 1);
  CHECK(relaxed->evidence.objective_s == doctest::Approx(12.006).epsilon(1e-12));
  CHECK(relaxed->evidence.objective_bound_s == doctest::Approx(12).epsilon(1e-12));
  CHECK(relaxed->predicted.iteration_s == doctest::Approx(12.006).epsilon(1e-12));

  options.near_tie = 0.0001;  // too far to be a tie
  const auto narrow = interop_dp(hardware, costs, options);
  REQUIRE(narrow);
  CHECK(narrow->pipelines[0].stages[0].where.mesh.subcluster == 0);
}

TEST_CASE("near-ties among the degrees of one mesh: data parallelism reduces gradients") {
  const auto hardware = plain_cluster(1, 2);
  auto costs = plain_costs(hardware, 2, 1, 0);
  costs.rows.erase(costs.rows.begin());  // both devices, or none: tensor 2
  costs.rows.push_back(costs.rows[0]);   // and data 2: 0.05 % faster, but with gradients to reduce
  costs.rows[1].where.degrees = {2, 1, 1};
  costs.rows[1].update_s = 5;
  for (auto& c : costs.rows[1].layer) c.forward_s = 1 - 0.0015;
  interop_options options;
  options.microbatches = 4;
  options.near_tie = 0;
  const auto strict = interop_dp(hardware, costs, options);
  REQUIRE(strict);
  CHECK(strict->pipelines[0].stages[0].where.degrees.data == 2);
  CHECK(strict->predicted.iteration_s == doctest::Approx(4 * (6 - 0.003) + 5).epsilon(1e-12));
  options.near_tie = 0.002;
  const auto relaxed = interop_dp(hardware, costs, options);
  REQUIRE(relaxed);
  CHECK(relaxed->pipelines[0].stages[0].where.degrees.tensor == 2);
  CHECK(relaxed->predicted.iteration_s == doctest::Approx(24).epsilon(1e-12));
  CHECK(relaxed->evidence.objective_s == doctest::Approx(24).epsilon(1e-12));
}

TEST_CASE("near ties never cost more than their share of the objective, and never a longer predicted iteration") {
  random_source random(1091);
  int changed = 0;
  for (int n = 0; n < 300 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 12, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 2 == 0});
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto strict = interop_dp(given.hardware, costs, given.options);
    given.options.near_tie = 0.05;
    const auto relaxed = interop_dp(given.hardware, costs, given.options);
    REQUIRE(strict.has_value() == relaxed.has_value());
    if (!strict) continue;
    REQUIRE(near(relaxed->evidence.objective_bound_s, strict->evidence.objective_s, 1e-12));
    REQUIRE(relaxed->evidence.objective_s <= strict->evidence.objective_s * 1.05 * (1 + 1e-12));
    REQUIRE(relaxed->predicted.iteration_s <= strict->predicted.iteration_s * (1 + 1e-12));
    changed += !(relaxed->pipelines == strict->pipelines);
    check_plan(given.hardware, costs, given.options, *relaxed);
  }
  CHECK(changed > 0);
}

TEST_CASE("plans that can be worked out by hand") {
  interop_options options;
  options.microbatches = 8;
  {
    // Two devices, two layers of 3 s, nothing to transfer: one stage each, period 3.
    const auto hardware = plain_cluster(2);
    const auto found = interop_dp(hardware, plain_costs(hardware, 2, 1, 0), options);
    REQUIRE(found);
    CHECK(found->pipelines[0].stages.size() == 2);
    CHECK(found->evidence.objective_s == doctest::Approx(6 + 7 * 3));
    CHECK(found->pipelines[0].stages[0].warmup == 2);
    CHECK(found->pipelines[0].stages[1].warmup == 1);
  }
  {
    // A transfer of 20 s is worse than to run both layers on one device: 6 s each microbatch.
    const auto hardware = plain_cluster(2);
    const auto found = interop_dp(hardware, plain_costs(hardware, 2, 1, 20), options);
    REQUIRE(found);
    CHECK(found->pipelines[0].stages.size() == 1);
    CHECK(found->evidence.objective_s == doctest::Approx(8 * 6));
    // If every device has to work, the link sets the period.
    options.use_all_devices = true;
    const auto forced = interop_dp(hardware, plain_costs(hardware, 2, 1, 20), options);
    REQUIRE(forced);
    CHECK(forced->evidence.objective_s == doctest::Approx(6 + 40 + 7 * 20));
    CHECK(forced->pipelines[0].stages[0].warmup == 4);  // 1 + ceil(1 + 2 * 20 / 20)
    options.use_all_devices = false;
  }
  {
    // A transfer as long as a stage needs 4 in flight, half as long 3, a tenth 2; memory for fewer asks for a longer period.
    auto hardware = plain_cluster(2);
    const auto costs = plain_costs(hardware, 2, 1, 3);
    for (const auto& [bytes, period, warmup] : {std::tuple{14, 3.0, 4}, {13, 6.0, 3}, {12, 30.0, 2}}) {
      options.use_all_devices = true;
      for (auto& s : hardware.subclusters) s.device.memory_bytes = bytes;  // weights 10, one for each microbatch
      const auto found = interop_dp(hardware, costs, options);
      REQUIRE(found);
      CHECK(found->evidence.objective_s == doctest::Approx(6 + 6 + 7 * period));
      CHECK(found->pipelines[0].stages[0].warmup == warmup);
    }
    hardware.subclusters[0].device.memory_bytes = hardware.subclusters[1].device.memory_bytes = 11;
    const auto none = interop_dp(hardware, costs, options);
    REQUIRE(!none);
    CHECK(none.why_not().reason.find("every device would need") != std::string::npos);
    hardware.subclusters[0].device.memory_bytes = hardware.subclusters[1].device.memory_bytes = 10;
    const auto nothing = interop_dp(hardware, costs, options);
    REQUIRE(!nothing);
    CHECK(nothing.why_not().reason.find("layer 0 alone needs") != std::string::npos);
  }
}

TEST_CASE("no plan for other reasons than memory") {
  interop_options options;
  options.microbatches = 4;
  options.use_all_devices = true;
  const auto two = plain_cluster(2);
  const auto cut_off = interop_dp(two, plain_costs(two, 4, 1, never), options);  // no link
  REQUIRE(!cut_off);
  CHECK(cut_off.why_not().why == refusal::kind::infeasible);
  CHECK(!cut_off.why_not().reason.empty());
  CHECK(cut_off.why_not().reason.find("out of memory") == std::string::npos);
  options.use_all_devices = false;
  const auto one_side = interop_dp(two, plain_costs(two, 4, 1, never), options);
  REQUIRE(one_side);
  CHECK(one_side->pipelines[0].stages.size() == 1);

  options.use_all_devices = true;
  const auto three = plain_cluster(3);
  const auto few_layers = interop_dp(three, plain_costs(three, 2, 1, 0), options);  // three devices, two layers
  REQUIRE(!few_layers);
  CHECK(few_layers.why_not().reason.find("out of memory") == std::string::npos);

  auto unusable = plain_costs(two, 4, 1, 0);
  unusable.rows.clear();
  const auto no_shape = interop_dp(two, unusable, options);
  REQUIRE(!no_shape);
  CHECK(no_shape.why_not().why == refusal::kind::infeasible);
  CHECK(!no_shape.why_not().reason.empty());
}

TEST_CASE("costs and options out of range throw input_error") {
  const auto hardware = plain_cluster(2, 2);
  const auto good = plain_costs(hardware, 3, 1, 0.5);
  interop_options options;
  options.microbatches = 4;
  REQUIRE(interop_dp(hardware, good, options));
  const auto rejects = [&](const auto& costs) { CHECK_THROWS_AS((void)interop_dp(hardware, costs, options), input_error); };
  const auto rejects_both = [&](const additive_costs& costs) {
    rejects(costs);
    rejects(opaque_costs{costs});
  };
  const double nan = std::nan("");

  for (const double bad : {nan, -1.0, never}) {
    CAPTURE(bad);
    auto costs = good;
    costs.rows[1].layer[2].forward_s = bad;
    rejects_both(costs);
    costs = good;
    costs.rows[1].layer[2].backward_s = bad;
    rejects_both(costs);
  }
  auto costs = good;
  costs.rows[0].layer[0].weight_bytes = -1;
  rejects_both(costs);
  costs = good;
  costs.rows[0].layer[0].activation_bytes = -1;
  rejects_both(costs);
  for (const double bad : {nan, -1.0}) {
    costs = good;
    costs.price(0, 0, 1) = bad;
    rejects_both(costs);
  }
  costs = good;
  costs.layers = 0;
  rejects_both(costs);

  struct astray : additive_costs {
    [[nodiscard]] std::vector<placement> placements(const submesh&) const { return {rows[0].where}; }
  };
  rejects(astray{good});

  const auto with = [&](auto change) {
    interop_options changed = options;
    change(changed);
    CHECK_THROWS_AS((void)interop_dp(hardware, good, changed), input_error);
  };
  with([](interop_options& o) { o.microbatches = 0; });
  with([](interop_options& o) { o.microbatch_size = 0; });
  with([](interop_options& o) { o.epsilon = -0.1; });
  with([](interop_options& o) { o.epsilon = 1.1; });
  with([&](interop_options& o) { o.epsilon = nan; });
  with([](interop_options& o) { o.near_tie = -1; });
  with([&](interop_options& o) { o.near_tie = nan; });
  with([](interop_options& o) { o.warmup = static_cast<warmup_rule>(99); });
  CHECK_THROWS_AS((void)interop_dp(cluster{}, good, options), input_error);
}
