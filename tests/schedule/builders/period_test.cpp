// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/period.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../../sanitizer_share.hpp"
#include "../random_pipeline.hpp"

using namespace hetsched;

namespace {

/// Whether longer and longer runs settle at this period. A run's growth is regular only over a multiple of the number of
/// microbatches in its critical cycle, which is N_i - N_j + 1 for some pair: hence the common multiple. A nearly critical
/// cycle can rule for long before the critical one shows: hence two lengths in a row.
bool settles_at(const pipeline& p, const std::vector<int>& warmups, double expected) {
  int multiple = 1;
  for (std::size_t i = 0; i < warmups.size(); ++i)
    for (std::size_t j = i; j < warmups.size(); ++j) {
      multiple = std::lcm(multiple, warmups[i] - warmups[j] + 1);
      REQUIRE(multiple < 1 << 24);
    }
  int in_a_row = 0;
  for (int length = 256; length <= 1 << 18; length *= 4) {
    const double grown = makespan(p, warmups, length + multiple) - makespan(p, warmups, length);
    const bool equal = std::abs(grown / multiple - expected) <= 1e-9 * expected;
    in_a_row = equal ? in_a_row + 1 : 0;
    if (in_a_row == 2) return true;
  }
  return false;
}

bool legal(const std::vector<int>& warmups) { return warmups.back() >= 1 && std::is_sorted(warmups.rbegin(), warmups.rend()); }

/// Every vector of counts up to the caps that does not grow downstream.
std::vector<std::vector<int>> legal_counts(const std::vector<int>& caps) {
  std::vector<std::vector<int>> all{{}};
  for (const int cap : caps) {
    std::vector<std::vector<int>> longer;
    for (const auto& counts : all)
      for (int n = 1; n <= (counts.empty() ? cap : std::min(cap, counts.back())); ++n) {
        longer.push_back(counts);
        longer.back().push_back(n);
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace

TEST_CASE("2,000 random pipelines: measured period, exact warm-ups, and no count smaller") {
  random_source random(2000);
  int link_bound = 0, lowered_counts = 0;
  for (int n = 0; n < 2000 / test::sanitizer_share; ++n) {
    const int stages = random.integer(2, n % 20 == 0 ? 8 : 6);
    const auto p = test::random_pipeline(random, stages);
    const double best = best_period(p);
    CAPTURE(n);
    CAPTURE(test::text(p));

    auto any = test::random_warmups(random, stages);
    for (int& count : any) count = std::min(count, 10);  // keeps the common multiple of settles_at small
    CAPTURE(test::text(any));
    REQUIRE(settles_at(p, any, period(p, any)));

    double slowest_stage = 0;
    for (int i = 0; i < stages; ++i) slowest_stage = std::max(slowest_stage, p.compute_s(i));
    link_bound += best > slowest_stage;
    const auto exact = exact_warmups(p, best);
    CAPTURE(test::text(exact));
    REQUIRE(legal(exact));
    REQUIRE(period(p, exact) == doctest::Approx(best).epsilon(1e-9));
    REQUIRE(settles_at(p, exact, best));

    for (std::size_t i = 0; i < exact.size(); ++i) {
      auto fewer = exact;
      if (--fewer[i] < 1) continue;
      CAPTURE(i);
      if (!legal(fewer)) {
        REQUIRE_THROWS_AS((void)makespan(p, fewer, 1000), input_error);
        continue;
      }
      ++lowered_counts;
      REQUIRE(period(p, fewer) > best * (1 + 1e-9));
      if (n % 10 == 0) REQUIRE(settles_at(p, fewer, period(p, fewer)));
    }
  }
  CHECK(link_bound > 200 / test::sanitizer_share);
  CHECK(lowered_counts > 1000 / test::sanitizer_share);
}

TEST_CASE("the exact counts are the least of all that reach a period") {
  random_source random(51);
  for (int n = 0; n < 200; ++n) {
    const int stages = random.integer(2, 4);
    const auto p = test::random_pipeline(random, stages);
    const double target = best_period(p) * random.uniform(1.0, 1.5);
    const auto exact = exact_warmups(p, target);
    CAPTURE(test::text(p));
    CAPTURE(target);
    auto caps = exact;
    for (int& cap : caps) ++cap;
    for (const auto& counts : legal_counts(caps)) {
      bool at_least = true;
      // Adding the same number to every count changes no difference, so counts are compared above the last stage's 1.
      for (std::size_t i = 0; i < counts.size(); ++i) at_least = at_least && counts[i] - counts.back() + 1 >= exact[i];
      if (period(p, counts) <= target) REQUIRE(at_least);
    }
  }
}

TEST_CASE("periods by hand") {
  const pipeline p{{1, 1}, {2, 2}, {1}, {}};
  CHECK(period(p, {1, 1}) == 8);  // one microbatch at a time: 3 + 3 + 2
  CHECK(period(p, {2, 1}) == 4);  // two share the round trip
  CHECK(period(p, {3, 1}) == 3);  // the stages are busy
  CHECK(period(p, {4, 2}) == 3);  // only differences count
  CHECK(period({{1, 1}, {2, 2}, {1}, {3}}, {2, 1}) == 5);
  CHECK(period({{1, 1}, {2, 2}, {1}, {7}}, {9, 1}) == 7);
  CHECK(period({{1}, {2}, {}, {}}, {1}) == 3);
  CHECK_THROWS_AS((void)period(p, {1, 2}), input_error);
  CHECK_THROWS_AS((void)period(p, {1}), input_error);
  CHECK_THROWS_AS((void)period(p, {0, 0}), input_error);
}

TEST_CASE("the fastest period under caps, against every legal vector of counts") {
  random_source random(61);
  int capped = 0;
  for (int n = 0; n < 1000; ++n) {
    const int stages = random.integer(1, 5);
    const auto p = test::random_pipeline(random, stages);
    std::vector<int> caps(p.forward_s.size());
    for (int& cap : caps) cap = random.integer(1, 6);
    CAPTURE(test::text(p));
    CAPTURE(test::text(caps));
    double expected = std::numeric_limits<double>::infinity();
    for (const auto& counts : legal_counts(caps)) expected = std::min(expected, period(p, counts));
    const double fastest = fastest_period(p, caps);
    REQUIRE(fastest == doctest::Approx(expected).epsilon(1e-8));
    const auto counts = exact_warmups(p, fastest);
    for (std::size_t i = 0; i < counts.size(); ++i) REQUIRE(counts[i] <= caps[i]);
    REQUIRE(period(p, counts) <= fastest * (1 + 1e-9));
    capped += fastest > best_period(p) * (1 + 1e-9);
  }
  CHECK(capped > 200);
}

TEST_CASE("the fastest period under caps, against every cycle ratio as a candidate") {
  random_source random(62);
  for (int n = 0; n < 500; ++n) {
    const int stages = random.integer(2, 8);
    const auto p = test::random_pipeline(random, stages);
    std::vector<int> caps(p.forward_s.size());
    for (int& cap : caps) cap = random.integer(1, 12);
    CAPTURE(test::text(p));
    CAPTURE(test::text(caps));
    std::vector<double> candidates{best_period(p)};
    for (int i = 0; i < stages; ++i) {
      double cycle = p.compute_s(i);
      for (int j = i + 1; j < stages; ++j) {
        cycle += p.round_trip_s(j - 1) + p.compute_s(j);
        for (int k = 1; k <= 12; ++k)
          if (cycle / k > best_period(p)) candidates.push_back(cycle / k);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    const auto fits = [&](double candidate) {
      const auto counts = exact_warmups(p, candidate);
      for (std::size_t i = 0; i < counts.size(); ++i)
        if (counts[i] > caps[i]) return false;
      return true;
    };
    const auto first = std::find_if(candidates.begin(), candidates.end(), fits);
    REQUIRE(first != candidates.end());
    REQUIRE(fastest_period(p, caps) == doctest::Approx(*first).epsilon(1e-8));
  }
}

TEST_CASE("caps at their ends") {
  const pipeline p{{1, 1, 1}, {2, 2, 2}, {1, 0.5}, {}};
  CHECK(fastest_period(p, {1, 1, 1}) == doctest::Approx(9 + 3));  // the whole round trip, one microbatch at a time
  CHECK(fastest_period(p, {99, 99, 99}) == 3);
  CHECK(std::isinf(fastest_period(p, {3, 2, 0})));
  CHECK(fastest_period({{0, 0}, {0, 0}, {0}, {}}, {1, 1}) == 0);
  CHECK_THROWS_AS((void)fastest_period(p, {1, 1}), input_error);
}
