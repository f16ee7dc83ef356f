// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/any_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

#include <hetsched/core/random.hpp>
#include <hetsched/evaluate/evaluate.hpp>

#include "interop_dp/brute_force.hpp"
#include "interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Of the stages as they are, from the definition.
double bound_of(const bare_plan& p, double microbatches) {
  double before = 0, bound = 0;
  for (std::size_t i = 0; i < p.compute.size(); ++i) {
    bound = std::max(bound, before + microbatches * p.compute[i]);
    before += p.compute[i];
    if (i < p.transfer.size()) before += p.transfer[i].forward_s + p.transfer[i].backward_s;
  }
  return bound;
}

template <class Costs>
void compare(const instance& given, const Costs& costs, double haste) {
  const double microbatches = haste * given.problem.microbatches;
  double wanted = never;
  brute_force_options all;
  all.microbatches = given.problem.microbatches;
  all_plans<Costs>(given.hardware, costs, all)
      .each([&](const bare_plan& p) { return bound_of(p, microbatches) < wanted; },
            [&](const bare_plan& p) { wanted = std::min(wanted, bound_of(p, microbatches)); });
  const std::array options{any_schedule_options{.microbatches = given.problem.microbatches, .haste = haste}};
  price_book book(given.hardware, costs);
  const auto found = any_schedule_pipelines(book, options);
  if (!found) {
    CHECK(found.why_not().reason == "the cost model offers no placement on any submesh of this cluster");
    CHECK(wanted == never);
    return;
  }
  const auto& line = found->front();
  REQUIRE(line.has_value() == (wanted < never));
  if (!line) return;
  CHECK(line->bound_s == doctest::Approx(wanted).epsilon(2e-5));
  CHECK(line->lowest_s <= wanted * (1 + 1e-12));
  CHECK(line->lowest_s >= wanted * (1 - 2e-5));
  if (wanted == 0) return;
  const std::array below{
      any_schedule_options{.microbatches = given.problem.microbatches, .haste = haste, .below_s = wanted * 0.999}};
  CHECK(!any_schedule_pipelines(book, below)->front());

  // evaluate plays it, and no schedule is faster than the bound.
  if (haste != 1) return;
  plan p{.pipelines = {line->line}};
  for (const auto* name : {"gpipe", "exact_1f1b", "eager_1f1b"}) {
    p.pipelines[0].schedule = {.name = name};
    const auto judged = evaluate(given.hardware, costs, p, {});
    REQUIRE(judged);
    CHECK(judged->plan.predicted.iteration_s >= line->bound_s * (1 - 1e-9));
  }
}

}  // namespace

TEST_CASE("the pipeline of the least bound on any schedule, against all pipelines") {
  random_source random(20261126);
  for (int n = 0; n < 2000 / search_share; ++n) {
    auto given = random_instance(random, {.layers = 6, .subclusters = 3, .devices = 3, .prices_by_degrees = n % 3 == 0});
    CAPTURE(n);
    const auto replay = text(given);
    CAPTURE(replay);
    const double haste = n % 4 == 0 ? 2.5 : 1;
    compare(given, additive_costs{given.costs}, haste);
    compare(given, opaque_costs{given.costs}, haste);
    compare(given, random_intervals(random, given.costs), haste);  // not even monotone
  }
}

TEST_CASE("a cluster that is too large for it is refused, and so are options that make no sense") {
  random_source random(3);
  const auto given = random_instance(random);
  const additive_costs costs{given.costs};
  price_book book(given.hardware, costs);
  for (const auto& o : {any_schedule_options{.microbatches = 0}, any_schedule_options{.haste = 0},
                        any_schedule_options{.in_flight = 0}, any_schedule_options{.below_s = -1}})
    CHECK_THROWS_AS((void)any_schedule_pipelines(book, std::array{o}), input_error);
  auto large = given.hardware;
  while (large.subclusters.size() < 9) large.subclusters.push_back(large.subclusters[0]);
  price_book of_large(large, costs);
  const auto refused = any_schedule_pipelines(of_large, std::array{any_schedule_options{}});
  REQUIRE(!refused);
  CHECK(refused.why_not().reason == "the cluster is too large for a search over all schedules");
}
