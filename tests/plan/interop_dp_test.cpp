// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/interop_dp.hpp>

#include <doctest/doctest.h>

#include <string>
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
  REQUIRE(found->evidence.objective_bound_s == found->evidence.objective_s);
  check_plan(given.hardware, costs, given.options, *found);
  brute.memory_factor = never;
  counts.memory_bound += brute_force_objective(given.hardware, costs, brute) < best * (1 - 1e-9);
}

void compare_many(std::uint64_t seed, int instances, warmup_rule rule) {
  random_source random(seed);
  tally counts;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto given = random_instance(random);
    given.options.warmup = rule;
    compare(given, additive_costs{given.costs}, counts);
  }
  CAPTURE(counts.infeasible);
  CAPTURE(counts.memory_bound);
  MESSAGE(counts.all << " " << counts.infeasible << " " << counts.memory_bound);
  CHECK(counts.infeasible * 5 >= counts.all);
  CHECK(counts.memory_bound * 5 >= counts.all);
}

}  // namespace

TEST_CASE("1,000 random instances equal the brute force: H-1F1B") { compare_many(1001, 1000 / sanitizer_share, warmup_rule::h1f1b); }
TEST_CASE("300 random instances equal the brute force: exact warm-ups") { compare_many(1002, 300 / sanitizer_share, warmup_rule::exact); }
TEST_CASE("300 random instances equal the brute force: 1F1B") { compare_many(1003, 300 / sanitizer_share, warmup_rule::one_f_one_b); }
TEST_CASE("300 random instances equal the brute force: Eager-1F1B") { compare_many(1004, 300 / sanitizer_share, warmup_rule::eager); }
