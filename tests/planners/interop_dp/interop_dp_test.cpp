// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>

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
  auto brute = as_brute(given.problem, given.options);
  brute.order = std::move(order);
  const double best = brute_force_objective(given.hardware, costs, brute);
  const auto found = interop_dp(given.hardware, costs, given.problem, given.options);
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
  CAPTURE(found->evidence->objective_value);
  CAPTURE(sum_bound(*found));
  // Small updates are bounded by the least of a first stage, others by each plan's own.
  const auto proves = [&](double least) { return near(sum_bound(*found), std::min(least, found->predicted.iteration_s)); };
  if (!proves(best + least_update(given.hardware, costs)))
    REQUIRE(proves(brute_force_objective(given.hardware, costs, brute, true)));
  check_plan(given.hardware, costs, given.problem, given.options, *found);
  if (counts.all % 6 == 0) {
    // With a look at all plans, the least iteration.
    auto options = given.options;
    options.enumeration = 1e6;
    const auto fastest = interop_dp(given.hardware, costs, given.problem, options);
    REQUIRE(fastest);
    const double least = brute_force_iteration(given.hardware, costs, brute);
    CAPTURE(least);
    CAPTURE(fastest->predicted.iteration_s);
    REQUIRE(as_fast(fastest->predicted.iteration_s, least));
    if (options.warmup == warmup_rule::exact) REQUIRE(fastest->evidence->complete);  // else only of plans under the rule
    REQUIRE(fastest->evidence->objective_bound <= std::min(least, fastest->predicted.iteration_s) * (1 + 1e-9));
  }
  brute.memory_factor = never;
  counts.memory_bound += brute_force_objective(given.hardware, costs, brute) < best * (1 - 1e-9);
}

enum class costs_as { additive, opaque, intervals, by_node };

/// Random instances under one rule; a good share of them infeasible, and of the others bound by memory.
void compare_many(std::uint64_t seed, int instances, warmup_rule rule, const instance_limits& limits = {},
                  costs_as kind = costs_as::additive) {
  random_source random(seed);
  tally counts;
  for (int n = 0; n < instances / sweep_share; ++n) {
    CAPTURE(seed);
    CAPTURE(n);
    auto given = random_instance(random, limits);
    if (limits.rich) enrich(given, random);
    if (limits.shared) share_parameters(given, random);
    given.options.warmup = rule;
    switch (kind) {
      case costs_as::additive:
        compare(given, additive_costs{given.costs}, counts);
        break;
      case costs_as::opaque:
        compare(given, opaque_costs{given.costs}, counts);
        break;
      case costs_as::by_node:
        compare(given, by_node<additive_costs>{{given.costs}}, counts);
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

/// The least latency and M - 1 periods with the least update, where the evidence tells it: not below the best iteration.
std::optional<double> proven(const plan& p) {
  if (p.evidence->sum_bound >= p.predicted.iteration_s) return std::nullopt;
  return p.evidence->sum_bound;
}

/// That searches of equal instances proved the same, each as far as its best plan lets it.
bool agree(const plan& a, const plan& b) {
  const auto x = proven(a), y = proven(b);
  if (x && y) return near(*x, *y, 1e-12);
  if (x) return *x >= b.predicted.iteration_s * (1 - 1e-12);
  if (y) return *y >= a.predicted.iteration_s * (1 - 1e-12);
  return true;
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
                            0,
                            {}});
  costs.prices.assign(static_cast<std::size_t>(layers - 1), transfer_s);
  return costs;
}

}  // namespace

TEST_CASE("random instances equal the brute force: H-1F1B") { compare_many(1001, 3000, warmup_rule::h1f1b); }
TEST_CASE("random instances equal the brute force: exact warm-ups") { compare_many(1002, 3000, warmup_rule::exact); }
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

TEST_CASE("transfers that are cheaper or dearer between stages of one node equal the brute force") {
  compare_many(1121, 600, warmup_rule::exact, {.layers = 6, .devices = 6}, costs_as::by_node);
  compare_many(1122, 600, warmup_rule::h1f1b, {.layers = 6, .devices = 6, .prices_by_degrees = true}, costs_as::by_node);
  compare_many(1123, 100, warmup_rule::one_f_one_b, {.layers = 5, .subclusters = 1, .devices = 8}, costs_as::by_node);
}

TEST_CASE("temporary bytes, overheads, ways of saving memory and transfers dearer one way equal the brute force") {
  const instance_limits limits{.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = true, .rich = true};
  compare_many(1101, 2000, warmup_rule::h1f1b, limits);
  compare_many(1102, 1500, warmup_rule::exact, limits);
  compare_many(1103, 400, warmup_rule::one_f_one_b, limits);
  compare_many(1104, 400, warmup_rule::eager, limits);
  compare_many(1105, 300, warmup_rule::h1f1b, limits, costs_as::opaque);
  compare_many(1106, 300, warmup_rule::exact, limits, costs_as::intervals);
}

TEST_CASE("layers that share parameters equal the brute force") {
  const instance_limits limits{.layers = 6, .subclusters = 2, .devices = 4, .rich = true, .shared = true};
  compare_many(1131, 1000, warmup_rule::exact, limits);
  compare_many(1132, 600, warmup_rule::h1f1b, limits);
  compare_many(1133, 240, warmup_rule::one_f_one_b, {.layers = 5, .subclusters = 1, .shared = true});
  compare_many(1134, 240, warmup_rule::exact, {.layers = 5, .shared = true}, costs_as::opaque);
}

TEST_CASE("what transfers hold meanwhile has room on both of their sides") {
  constexpr int share = sanitizer_share > 1 ? search_share : bulk_share;
  random_source random(1111);
  int feasible = 0, bound = 0;
  for (int n = 0; n < 400 / share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random);
    if (n % 2 == 0) enrich(given, random);
    INFO(text(given));
    for (auto& r : given.costs.rows) r.update_s = 0;
    const auto free = interop_dp(given.hardware, additive_costs{given.costs}, given.problem, given.options);
    bytes_t least = given.hardware.subclusters[0].device.memory_bytes;
    for (const auto& s : given.hardware.subclusters) least = std::min(least, s.device.memory_bytes);
    for (auto& c : given.costs.prices) c.extra_bytes = static_cast<bytes_t>(random.uniform(0, 0.15) * static_cast<double>(least));
    const additive_costs costs{given.costs};
    const auto found = interop_dp(given.hardware, costs, given.problem, given.options);
    if (!found) continue;
    ++feasible;
    REQUIRE(free);
    bound += found->predicted.iteration_s > free->predicted.iteration_s * (1 + 1e-9);
    if (const auto with = proven(*found), without = proven(*free); with && without) REQUIRE(*with >= *without * (1 - 1e-9));
    const auto again = evaluate(given.hardware, costs, *found, {.epsilon = given.options.epsilon});
    REQUIRE(again);
    REQUIRE(again->plan == *found);
    REQUIRE(again->shortage == "");
    const auto& line = found->pipelines[0];
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      const auto& s = line.stages[i];
      auto more = costs.overheads(s.where());
      if (i > 0) more.buffer_bytes += line.boundaries[i - 1].extra_bytes;
      if (i + 1 < line.stages.size()) more.buffer_bytes += line.boundaries[i].extra_bytes;
      REQUIRE(s.overheads == more);
      REQUIRE(s.memory_bytes == memory_of(s.cost, more, s.warmup).total());
      REQUIRE(s.memory_bytes <= s.memory_capacity_bytes);
    }
  }
  CHECK(feasible >= 100 / share);
  CHECK(bound > 0);
}

TEST_CASE("the prediction knows the model's FLOPs and the arithmetic that are asked for") {
  const auto hardware = plain_cluster(2);  // 1 TFLOP/s in fp16 and in fp32 each
  const auto costs = plain_costs(hardware, 2, 1, 0);
  const auto found = interop_dp(hardware, costs, {.microbatches = 8, .microbatch_size = 2, .flops_per_sample = 0.75e12});
  REQUIRE(found);
  REQUIRE(found->pipelines[0].stages.size() == 2);
  const double samples_per_s = 16 / found->predicted.iteration_s;
  CHECK(found->predicted.samples_per_s == doctest::Approx(samples_per_s));
  CHECK(found->predicted.mfu == doctest::Approx(0.75e12 * samples_per_s / 2e12));
  auto halved = hardware;
  for (auto& s : halved.subclusters) s.device.peak_flops[static_cast<std::size_t>(precision::fp32)] /= 2;
  const auto slower = interop_dp(
      halved, costs, {.microbatches = 8, .microbatch_size = 2, .arithmetic = precision::fp32, .flops_per_sample = 0.75e12});
  REQUIRE(slower);
  CHECK(slower->predicted.mfu == doctest::Approx(2 * found->predicted.mfu));
}

TEST_CASE("three subclusters equal the brute force") {
  compare_many(1031, 300, warmup_rule::h1f1b, {.layers = 6, .subclusters = 3, .devices = 3});
  compare_many(1032, 150, warmup_rule::exact, {.layers = 6, .subclusters = 3, .devices = 3});
}

TEST_CASE("additive fast path equals the general path; naming the classes of prices changes nothing") {
  random_source random(1041);
  constexpr int layers = sanitizer_share > 1 ? 8 : 40, devices = sanitizer_share > 1 ? 4 : 6;
  int feasible = 0, told = 0;
  for (int n = 0; n < std::max(200 / sweep_share, 20); ++n) {
    CAPTURE(n);
    auto given =
        random_instance(random, {.layers = layers, .subclusters = 3, .devices = devices, .prices_by_degrees = n % 2 == 0});
    given.options.warmup = n % 4 == 3    ? warmup_rule::exact
                           : n % 40 == 1 ? warmup_rule::eager
                           : n % 40 == 2 ? warmup_rule::one_f_one_b
                                         : warmup_rule::h1f1b;
    for (auto& r : given.costs.rows) r.update_s = 0;  // else it depends on the plans met what is proven
    INFO(text(given));
    const auto fast = interop_dp(given.hardware, additive_costs{given.costs}, given.problem, given.options);
    const auto general = interop_dp(given.hardware, opaque_costs{given.costs}, given.problem, given.options);
    const auto named = interop_dp(given.hardware, with_classes<additive_costs>{{given.costs}}, given.problem, given.options);
    REQUIRE(fast.has_value() == general.has_value());
    REQUIRE(fast.has_value() == named.has_value());
    if (!fast) continue;
    ++feasible;
    told += proven(*fast) && proven(*general);
    REQUIRE(agree(*fast, *general));
    REQUIRE(agree(*fast, *named));
    check_plan(given.hardware, additive_costs{given.costs}, given.problem, given.options, *fast);
    check_plan(given.hardware, opaque_costs{given.costs}, given.problem, given.options, *general);
  }
  CHECK(feasible >= 100 / sweep_share);
  CHECK(told * (sanitizer_share > 1 ? 20 : 10) >= feasible);
}

TEST_CASE("a fixed order of subclusters equals the brute force in that order") {
  random_source random(1051);
  tally counts;
  int other_order = 0;
  for (int n = 0; n < 400 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = n % 4 == 0 ? 5 : 3, .devices = 2});
    const int k = static_cast<int>(given.hardware.subclusters.size());
    std::vector<int> order(static_cast<std::size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    if (n % 4 == 1) {
      given.options.order = subcluster_order::as_given;
    } else {
      // Falling memory per FLOP/s.
      given.options.order = subcluster_order::memory_to_compute;
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        const auto ratio = [&](int i) {
          const auto& d = given.hardware.subclusters[static_cast<std::size_t>(i)].device;
          return static_cast<double>(d.memory_bytes) / d.flops(precision::fp16);
        };
        return ratio(a) > ratio(b);
      });
    }
    compare(given, additive_costs{given.costs}, counts, order);
    auto any_order = as_brute(given.problem, given.options);
    auto this_order = any_order;
    this_order.order = order;
    const additive_costs costs{given.costs};
    other_order +=
        brute_force_objective(given.hardware, costs, any_order) < brute_force_objective(given.hardware, costs, this_order);
  }
  CHECK(counts.infeasible < counts.all);
  CHECK(other_order * 10 >= counts.all);  // the order matters
}

TEST_CASE("more subclusters than all orders are looked at of: a plan, and a bound on those of any order") {
  random_source random(1055);
  int feasible = 0, of_first_order = 0, better = 0;
  for (int n = 0; n < 300 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 5, .subclusters = 6, .devices = 2});
    if (given.hardware.subclusters.size() < 5) continue;
    given.options.warmup = n % 2 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const double least = brute_force_objective(given.hardware, costs, as_brute(given.problem, given.options));
    const auto found = interop_dp(given.hardware, costs, given.problem, given.options);
    given.options.order = subcluster_order::memory_to_compute;
    const auto fixed = interop_dp(given.hardware, costs, given.problem, given.options);
    if (least == never) REQUIRE(!found);
    if (fixed) REQUIRE(found);
    if (!found) continue;
    ++feasible;
    check_plan(given.hardware, costs, given.problem, given.options, *found);
    const double with_updates = brute_force_objective(given.hardware, costs, as_brute(given.problem, given.options), true);
    REQUIRE(found->evidence->objective_bound <= with_updates * (1 + 1e-9));
    of_first_order += fixed.has_value();
    better += fixed && found->predicted.iteration_s < fixed->predicted.iteration_s * (1 - 1e-9);
  }
  CHECK(feasible >= 50 / sanitizer_share);
  CHECK(of_first_order > 0);
  CHECK(better > 0);
}

TEST_CASE("many subclusters in a ring: a pipeline that uses all of them follows the links") {
  constexpr int count = 14;
  cluster hardware;
  for (int k = 0; k < count; ++k)
    hardware.subclusters.push_back({"h" + std::to_string(k), *find_device("RTX3090"), 1, 1, {}, {}});
  for (int k = 0; k < count; ++k)  // 5 and 14 have no common divisor: a ring in another order
    hardware.links.push_back({.a = 5 * k % count, .b = 5 * (k + 1) % count, .link = {1e-3, 1e9}});
  const auto model = make_chain(gpt({.layers = 16, .hidden = 256, .heads = 4, .vocab = 1000, .sequence = 64}));
  const analytic_cost_model costs(hardware, model, {});
  const auto found = interop_dp(hardware, costs, {.microbatches = 4, .use_all_devices = true});
  REQUIRE(found);
  CHECK(found->pipelines.front().stages.size() == count);
  // A star has no such way, and not every order was looked at.
  hardware.links.clear();
  for (int k = 1; k < count; ++k) hardware.links.push_back({.a = 0, .b = k, .link = {1e-3, 1e9}});
  const auto none = interop_dp(hardware, costs, {.microbatches = 4, .use_all_devices = true});
  REQUIRE_FALSE(none);
  CHECK(none.why_not().reason.find("no link between h1 - h2, ") != std::string::npos);
  CHECK(none.why_not().reason.find("(in the order of subclusters that was looked at)") != std::string::npos);
}

TEST_CASE("all orders of three subclusters: the best of the six fixed ones") {
  constexpr int instances = sanitizer_share > 1 ? 2 : sweeps ? 60 : 20;
  random_source random(1061);
  int feasible = 0, told = 0;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 20, .subclusters = 3, .devices = 4});
    given.options.warmup = n % 3 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const auto found = interop_dp(given.hardware, additive_costs{given.costs}, given.problem, given.options);
    double best = never, shortest = never;
    bool any = false;
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
      const auto fixed = interop_dp(permuted.hardware, additive_costs{permuted.costs}, permuted.problem, permuted.options);
      if (!fixed) continue;
      any = true;
      shortest = std::min(shortest, fixed->predicted.iteration_s);
      best = std::min(best, proven(*fixed).value_or(never));
    } while (std::next_permutation(order.begin(), order.end()));
    REQUIRE(found.has_value() == any);
    if (!found) continue;
    ++feasible;
    // What a fixed order proves is least, unless a shorter iteration hides it.
    if (const auto least = proven(*found); least && best < shortest) {
      ++told;
      REQUIRE(near(*least, best, 1e-12));
    }
  }
  CHECK(feasible >= std::max(instances / 3, 1));
  CHECK((told > 0 || sanitizer_share > 1));
}

TEST_CASE("progress: the bound rises to the best plan, which falls") {
  random_source random(1071);
  int calls = 0, feasible = 0;
  for (int n = 0; n < 200 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 12, .subclusters = 2, .devices = 6});
    given.options.warmup = n % 3 == 0 ? warmup_rule::exact : warmup_rule::h1f1b;
    INFO(text(given));
    search_progress last{.steps = 0, .unit = "", .incumbent = never, .bound = 0};
    given.problem.progress = [&](const search_progress& now) {
      REQUIRE(now.steps >= last.steps);
      REQUIRE(now.unit == "searches");
      REQUIRE(now.incumbent <= last.incumbent);
      REQUIRE(now.bound >= std::min(last.bound, now.incumbent));
      REQUIRE(now.bound <= now.incumbent);
      last = now;
      ++calls;
      return true;
    };
    const auto found = interop_dp(given.hardware, additive_costs{given.costs}, given.problem, given.options);
    if (!found) continue;
    ++feasible;
    REQUIRE(last.incumbent < never);
    REQUIRE(work_of(*found, "evaluations") >= last.steps);
    REQUIRE(found->evidence->objective_value <= last.incumbent);
    REQUIRE(sum_bound(*found) >= std::min(last.bound, found->evidence->objective_value));
    REQUIRE(work_of(*found, "plans") > 0);
  }
  CHECK(calls > feasible);
  CHECK(feasible >= 50 / search_share);
}

TEST_CASE("what updates add to an iteration counts in the search") {
  const auto hardware = plain_cluster(2);
  auto costs = plain_costs(hardware, 1, 1, 0);  // one layer: 3 s
  costs.rows[0].update_s = 10;                  // the second device is 0.05 % slower, but updates at once
  costs.rows[1].layer[0].forward_s = 1.0015;
  const planning_problem problem{.microbatches = 4};
  for (const double near_tie : {0.0, 0.002}) {
    const auto found = interop_dp(hardware, costs, problem, {.gap = 0, .near_tie = near_tie, .enumeration = 0});
    REQUIRE(found);
    CHECK(found->pipelines[0].stages[0].where().mesh.subcluster == 1);
    CHECK(found->predicted.iteration_s == doctest::Approx(12.006).epsilon(1e-12));
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);
    CHECK(found->evidence->sum_bound == doctest::Approx(12).epsilon(1e-12));
    CHECK(found->evidence->objective_bound <= 12.006);
  }
  // An update of less than the slower device costs is no reason.
  costs.rows[0].update_s = 0.005;
  const auto found = interop_dp(hardware, costs, problem, {.gap = 0});
  REQUIRE(found);
  CHECK(found->pipelines[0].stages[0].where().mesh.subcluster == 0);
  CHECK(found->predicted.iteration_s == doctest::Approx(12.005).epsilon(1e-12));
}

TEST_CASE("gradients of shared parameters cross a slow link only where that is worth it") {
  auto hardware = plain_cluster(2);
  connect(hardware, "s0", "s1", {0, 1e9});
  auto costs = plain_costs(hardware, 4, 1, 0);
  const planning_problem problem{.microbatches = 8};
  const auto found_at = [&](bytes_t bytes) {
    for (auto& r : costs.rows) r.copies = {{.owner = 0, .layer = 3, .weight_bytes = 5, .reduction_bytes = bytes}};
    const auto found = interop_dp(hardware, costs, problem, {.gap = 0, .near_tie = 0, .enumeration = 0});
    REQUIRE(found);
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);
    return *found;
  };
  // Two stages: 2 x 6 s, and 7 x 6 s more; one stage: 8 x 12 s.
  const auto apart = found_at(30'000'000'000);
  CHECK(apart.pipelines[0].stages.size() == 2);
  CHECK(apart.predicted.iteration_s == doctest::Approx(54 + 30));
  CHECK(apart.evidence->sum_bound == doctest::Approx(54));
  const auto alone = found_at(60'000'000'000);
  CHECK(alone.pipelines[0].stages.size() == 1);
  CHECK(alone.pipelines[0].copy_sync.empty());
  CHECK(alone.pipelines[0].stages[0].memory_bytes < 40);
  CHECK(alone.predicted.iteration_s == doctest::Approx(96));
  CHECK(alone.evidence->sum_bound == doctest::Approx(54));
  // Where no link takes them, too; unless all devices are asked for.
  hardware.links.clear();
  CHECK(found_at(30'000'000'000).pipelines[0].stages.size() == 1);
  const auto all = interop_dp(hardware, costs, {.microbatches = 8, .use_all_devices = true});
  REQUIRE_FALSE(all);
  CHECK(all.why_not().why == refusal::kind::infeasible);
}

TEST_CASE("near ties never cost more than their share of the objective, and never a longer predicted iteration") {
  random_source random(1091);
  int changed = 0;
  for (int n = 0; n < 300 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 12, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 2 == 0});
    INFO(text(given));
    given.options.enumeration = 0;  // which would find what near ties do
    const additive_costs costs{given.costs};
    const auto strict = interop_dp(given.hardware, costs, given.problem, given.options);
    given.options.near_tie = 0.05;
    const auto relaxed = interop_dp(given.hardware, costs, given.problem, given.options);
    REQUIRE(strict.has_value() == relaxed.has_value());
    if (!strict) continue;
    REQUIRE(relaxed->predicted.iteration_s <= strict->predicted.iteration_s * (1 + 1e-12));
    changed += relaxed->predicted.iteration_s < strict->predicted.iteration_s * (1 - 1e-9);
    check_plan(given.hardware, costs, given.problem, given.options, *relaxed);
  }
  if (sanitizer_share == 1) CHECK(changed > 0);
}

TEST_CASE("plans that can be worked out by hand") {
  planning_problem problem;
  problem.microbatches = 8;
  const interop_options options{.warmup = warmup_rule::h1f1b, .gap = 0};
  {
    // Two devices, two layers of 3 s, nothing to transfer: one stage each, period 3.
    const auto hardware = plain_cluster(2);
    const auto found = interop_dp(hardware, plain_costs(hardware, 2, 1, 0), problem, options);
    REQUIRE(found);
    CHECK(found->pipelines[0].stages.size() == 2);
    CHECK(found->predicted.iteration_s == doctest::Approx(6 + 7 * 3));
    CHECK(found->pipelines[0].stages[0].warmup == 2);
    CHECK(found->pipelines[0].stages[1].warmup == 1);
  }
  {
    // A transfer of 20 s is worse than to run both layers on one device: 6 s each microbatch.
    const auto hardware = plain_cluster(2);
    const auto found = interop_dp(hardware, plain_costs(hardware, 2, 1, 20), problem, options);
    REQUIRE(found);
    CHECK(found->pipelines[0].stages.size() == 1);
    CHECK(found->predicted.iteration_s == doctest::Approx(8 * 6));
    // If every device has to work, the link sets the period.
    problem.use_all_devices = true;
    const auto forced = interop_dp(hardware, plain_costs(hardware, 2, 1, 20), problem, options);
    REQUIRE(forced);
    CHECK(forced->predicted.iteration_s == doctest::Approx(6 + 40 + 7 * 20));
    CHECK(forced->pipelines[0].stages[0].warmup == 4);  // 1 + ceil(1 + 2 * 20 / 20)
    problem.use_all_devices = false;
  }
  {
    // A transfer as long as a stage needs 4 in flight, half as long 3, a tenth 2; memory for fewer asks for a longer period.
    auto hardware = plain_cluster(2);
    const auto costs = plain_costs(hardware, 2, 1, 3);
    // With fewer in flight, all of them make their round trip of 12 s together, 3 s behind each other.
    for (const auto& [bytes, iteration_s, period_s, warmup] :
         {std::tuple{14, 12 + 7 * 3.0, 3.0, 4}, {13, 3 * 12 + 3.0, 4.0, 3}, {12, 4 * 12 + 3.0, 6.0, 2}}) {
      problem.use_all_devices = true;
      for (auto& s : hardware.subclusters) s.device.memory_bytes = bytes;  // weights 10, one for each microbatch
      const auto found = interop_dp(hardware, costs, problem, options);
      REQUIRE(found);
      CHECK(found->predicted.iteration_s == doctest::Approx(iteration_s));
      CHECK(found->predicted.period_s == doctest::Approx(period_s));
      CHECK(found->pipelines[0].stages[0].warmup == warmup);
    }
    hardware.subclusters[0].device.memory_bytes = hardware.subclusters[1].device.memory_bytes = 11;
    const auto none = interop_dp(hardware, costs, problem, options);
    REQUIRE(!none);
    CHECK(none.why_not().reason.find("every device would need") != std::string::npos);
    hardware.subclusters[0].device.memory_bytes = hardware.subclusters[1].device.memory_bytes = 10;
    const auto nothing = interop_dp(hardware, costs, problem, options);
    REQUIRE(!nothing);
    CHECK(nothing.why_not().reason.find("layer 0 alone needs") != std::string::npos);
  }
}

TEST_CASE("what is short is told beside what overheads leave, and what more memory helps of whole devices") {
  auto hardware = plain_cluster(1);
  hardware.subclusters[0].device.memory_bytes = 8 * gib;
  auto costs = plain_costs(hardware, 2, 1, 0);
  costs.rows[0].more = {.runtime_bytes = gib, .buffer_bytes = gib, .fragmentation = 0.5, .margin = 0.25};
  for (auto& c : costs.rows[0].layer) c = {.forward_s = 1, .backward_s = 1, .weight_bytes = 2 * gib, .activation_bytes = gib / 2};
  // Both layers, one microbatch in flight: 4 + 1.5 * 1 GiB of 8 / 1.25 - 2; in all (5.5 + 2) * 1.25 of 8, 17.2 % more.
  const auto whole = interop_dp(hardware, costs, {.microbatches = 4});
  REQUIRE(!whole);
  CAPTURE(whole.why_not().reason);
  CHECK(whole.why_not().reason.find("needs 5.5 GiB of 4.4 GiB (8 GiB less runtime, transfer buffers and margin) at warm-up 1") !=
        std::string::npos);
  CHECK(whole.why_not().reason.find("every device would need 17.") != std::string::npos);
  // One layer alone: 5 + 1.5 * 0.5.
  for (auto& c : costs.rows[0].layer) c.weight_bytes = 5 * gib;
  const auto layer = interop_dp(hardware, costs, {.microbatches = 4});
  REQUIRE(!layer);
  CAPTURE(layer.why_not().reason);
  CHECK(layer.why_not().reason.find("layer 0 alone needs 5.75 GiB of 4.4 GiB (8 GiB less") != std::string::npos);
}

TEST_CASE("no plan for other reasons than memory") {
  planning_problem problem;
  problem.microbatches = 4;
  problem.use_all_devices = true;
  const auto two = plain_cluster(2);
  const auto cut_off = interop_dp(two, plain_costs(two, 4, 1, never), problem);  // no link
  REQUIRE(!cut_off);
  CHECK(cut_off.why_not().why == refusal::kind::infeasible);
  CHECK(!cut_off.why_not().reason.empty());
  CHECK(cut_off.why_not().reason.find("out of memory") == std::string::npos);
  problem.use_all_devices = false;
  const auto one_side = interop_dp(two, plain_costs(two, 4, 1, never), problem);
  REQUIRE(one_side);
  CHECK(one_side->pipelines[0].stages.size() == 1);

  problem.use_all_devices = true;
  const auto three = plain_cluster(3);
  const auto few_layers = interop_dp(three, plain_costs(three, 2, 1, 0), problem);  // three devices, two layers
  REQUIRE(!few_layers);
  CHECK(few_layers.why_not().reason.find("out of memory") == std::string::npos);

  auto unusable = plain_costs(two, 4, 1, 0);
  unusable.rows.clear();
  const auto no_shape = interop_dp(two, unusable, problem);
  REQUIRE(!no_shape);
  CHECK(no_shape.why_not().why == refusal::kind::infeasible);
  CHECK(!no_shape.why_not().reason.empty());
}

TEST_CASE("costs and options out of range throw input_error") {
  const auto hardware = plain_cluster(2, 2);
  const auto good = plain_costs(hardware, 3, 1, 0.5);
  const planning_problem problem{.microbatches = 4};
  REQUIRE(interop_dp(hardware, good, problem));
  const auto rejects = [&](const auto& costs) { CHECK_THROWS_AS((void)interop_dp(hardware, costs, problem), input_error); };
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
  costs = good;
  costs.rows[0].layer[0].temporary_bytes = -1;
  rejects(costs);
  for (const double bad : {nan, -1.0}) {
    costs = good;
    costs.rows[1].more.margin = bad;
    rejects_both(costs);
    costs = good;
    costs.price(0, 0, 1) = bad;
    rejects_both(costs);
    costs = good;
    costs.price(0, 0, 1).backward_s = bad;
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
    planning_problem changed = problem;
    interop_options options;
    change(changed, options);
    CHECK_THROWS_AS((void)interop_dp(hardware, good, changed, options), input_error);
  };
  with([](planning_problem& p, interop_options&) { p.microbatches = 0; });
  with([](planning_problem& p, interop_options&) { p.microbatch_size = 0; });
  with([](planning_problem&, interop_options& o) { o.epsilon = -0.1; });
  with([](planning_problem&, interop_options& o) { o.epsilon = 1.1; });
  with([&](planning_problem&, interop_options& o) { o.epsilon = nan; });
  for (auto option : {&interop_options::near_tie, &interop_options::gap, &interop_options::effort})
    for (const double bad : {-1.0, nan}) with([&](planning_problem&, interop_options& o) { o.*option = bad; });
  with([](planning_problem&, interop_options& o) { o.warmup = static_cast<warmup_rule>(99); });
  CHECK_THROWS_AS((void)interop_dp(cluster{}, good, problem), input_error);
}
