// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/measure/median_timeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;

TEST_CASE("median timeline: one disturbed iteration of many does not show, and what came first still does") {
  random_source random(5);
  const pipeline times{.forward_s = {1, 2, 1}, .backward_s = {2, 4, 2}, .transfer_s = {0.3, 0.1}};
  const auto undisturbed = simulate(times, build_schedule("1f1b", times, 6)).timeline;
  std::vector<timeline> all(9, undisturbed);
  for (std::size_t k = 0; k < 4; ++k)  // fewer than half
    for (auto& a : all[k].actions) {
      a.start_s += random.uniform(0, 100);
      a.end_s = a.start_s + random.uniform(0, 100);
    }
  std::reverse(all[7].actions.begin(), all[7].actions.end());
  const auto typical = median_timeline(all);
  REQUIRE(typical.actions.size() == undisturbed.actions.size());
  CHECK(typical.ranks == 3);
  std::size_t exact = 0;
  for (const auto& a : typical.actions) {
    const auto before = std::find_if(undisturbed.actions.begin(), undisturbed.actions.end(),
                                     [&](const auto& b) { return detail::key_of(a) == detail::key_of(b); });
    REQUIRE(before != undisturbed.actions.end());
    CHECK(a.start_s >= before->start_s);
    exact += a.start_s == before->start_s;
  }
  CHECK(exact == typical.actions.size());  // disturbed starts are later ones only: the median of nine is one of the five others
  all.resize(4);
  const auto late = median_timeline(all);
  for (const auto& a : late.actions) CHECK(a.start_s <= a.end_s);
  all[1].actions.pop_back();
  CHECK_THROWS_AS((void)median_timeline(all), input_error);
  CHECK_THROWS_AS((void)median_timeline({}), input_error);
}

TEST_CASE("action spreads: quartiles by kind and stage") {
  timeline t{.ranks = 1, .microbatches = 5, .actions = {}};
  for (int m = 0; m < 5; ++m) {
    const double at = 10.0 * m, took = 1 << m;  // 1, 2, 4, 8, 16
    t.actions.push_back(
        {.what = {.kind = action_kind::forward, .stage = 1, .microbatch = m}, .rank = 0, .start_s = at, .end_s = at + took});
    t.actions.push_back(
        {.what = {.kind = action_kind::backward, .stage = 1, .microbatch = m}, .rank = 0, .start_s = at, .end_s = at + 3});
  }
  const std::vector<timeline> one{t};
  const auto found = action_spreads(one);
  REQUIRE(found.size() == 2);
  CHECK(found[0].kind == action_kind::forward);
  CHECK(found[0].stage == 1);
  CHECK(found[0].count == 5);
  CHECK(found[0].took == measured_time{.median_s = 4, .spread_s = 6});
  CHECK(found[1].took == measured_time{.median_s = 3, .spread_s = 0});
  CHECK(action_spreads({}).empty());
}
