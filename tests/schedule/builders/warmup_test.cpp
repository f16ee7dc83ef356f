// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/warmup.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../random_pipeline.hpp"

using namespace hetsched;

TEST_CASE("HARP's case study: {5, 2, 1}, and {5, 3, 1} under Eager-1F1B") {
  // Section 2.3.2: three balanced stages; the transfer between the first two takes between half and all of a stage's compute
  // time, the one between the last two runs over InfiniBand and is negligible.
  for (const double slow : {0.51, 0.75, 1.0}) {
    auto p = test::balanced(3, 3.0);
    p.transfer_s = {slow * 3.0, 0.01 * 3.0};
    CAPTURE(slow);
    CHECK(warmup_counts(warmup_rule::h1f1b, p) == std::vector{5, 2, 1});
    CHECK(warmup_counts(warmup_rule::eager, p) == std::vector{5, 3, 1});
    // Two more forwards than on the next stage would hide only half of a stage's compute time.
    CHECK(period(p, {5, 2, 1}) == doctest::Approx(3.0).epsilon(0.01));
    CHECK(period(p, {4, 2, 1}) > 3.0 * (1 + 1e-3));
  }
}

TEST_CASE("HARP's 10B MoE on 8 V100e and 4 A100: [5, 4, 2, 1]") {
  // Section 6.1.1 gives the counts only. They follow from four near-balanced stages, two per subcluster, whose middle transfer
  // crosses the subclusters and takes between epsilon and half of a stage's compute time; inside a subcluster transfers are
  // negligible.
  for (const double slow : {0.15, 0.3, 0.5}) {
    auto p = test::balanced(4, 2.0);
    p.transfer_s = {0.02, slow * 2.0, 0.04};
    CAPTURE(slow);
    CHECK(warmup_counts(warmup_rule::h1f1b, p) == std::vector{5, 4, 2, 1});
  }
}

TEST_CASE("1F1B and Eager-1F1B by their formulas") {
  CHECK(one_f_one_b_warmups(4) == std::vector{4, 3, 2, 1});
  CHECK(eager_warmups(4) == std::vector{7, 5, 3, 1});
  CHECK(one_f_one_b_warmups(1) == std::vector{1});
}

TEST_CASE("H-1F1B steps at their borders, and beyond the paper's range") {
  CHECK(h1f1b_step(0, 1) == 1);
  CHECK(h1f1b_step(0.1, 1) == 1);
  CHECK(h1f1b_step(0.101, 1) == 2);
  CHECK(h1f1b_step(0.5, 1) == 2);
  CHECK(h1f1b_step(0.501, 1) == 3);
  CHECK(h1f1b_step(1, 1) == 3);
  CHECK(h1f1b_step(1.2, 1) == 4);
  CHECK(h1f1b_step(1e-9, 1, 0.0) == 2);
  CHECK(h1f1b_step(0, 0) == 1);
  CHECK(h1f1b_step(1e300, 1e-300) == most_warmup);
  const pipeline far{.forward_s = {1, 1, 1}, .backward_s = {0, 0, 0}, .transfer_s = {1e99, 1e99}, .transfer_occupied_s = {0, 1}};
  CHECK(h1f1b_warmups(far, best_period(far)) == std::vector{most_warmup, most_warmup, 1});
  CHECK(exact_warmups(far, best_period(far)) == std::vector{most_warmup, most_warmup, 1});
}

TEST_CASE("exact counts equal the recurrence over all pairs of stages") {
  random_source random(31);
  for (int n = 0; n < 1000; ++n) {
    const auto p = test::random_pipeline(random, random.integer(1, 9));
    const double period_s = best_period(p) * random.uniform(1.0, 2.0);
    CAPTURE(test::text(p));
    CAPTURE(period_s);
    std::vector<int> expected(p.forward_s.size(), 1);
    for (int i = p.stages() - 2; i >= 0; --i) {
      double cycle = p.compute_s(i);
      for (int j = i + 1; j < p.stages(); ++j) {
        cycle += p.round_trip_s(j - 1) + p.compute_s(j);
        const int needed = expected[static_cast<std::size_t>(j)] - 1 + static_cast<int>(std::ceil(cycle / period_s - 1e-9));
        expected[static_cast<std::size_t>(i)] = std::max(expected[static_cast<std::size_t>(i)], needed);
      }
    }
    CHECK(exact_warmups(p, period_s) == expected);
  }
}

TEST_CASE("caps lower the counts and keep them from growing downstream") {
  CHECK(capped_warmups({5, 4, 2, 1}, {9, 9, 9, 9}) == std::vector{5, 4, 2, 1});
  CHECK(capped_warmups({5, 4, 2, 1}, {3, 9, 1, 9}) == std::vector{3, 3, 1, 1});
}

TEST_CASE("a pipeline is validated") {
  const auto broken = [](auto change) {
    auto p = test::balanced(3, 1.0);
    change(p);
    return p;
  };
  CHECK_NOTHROW(validate(test::balanced(3, 1.0)));
  CHECK_THROWS_AS(validate(pipeline{}), input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.backward_s.pop_back(); })), input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.transfer_s.push_back(1); })), input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.gradient_transfer_s = {1}; })), input_error);
  CHECK_THROWS_WITH_AS(validate(broken([](pipeline& p) { p.forward_s[1] = -1; })), "forward_s[1] is not a finite time >= 0",
                       input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.backward_s[0] = std::numeric_limits<double>::quiet_NaN(); })), input_error);
  CHECK_NOTHROW(validate(broken([](pipeline& p) { p.transfer_s = p.transfer_occupied_s = {1, 2}; })));
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.transfer_occupied_s = {0}; })), input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.gradient_transfer_occupied_s = {0, -1}; })), input_error);
  CHECK_THROWS_WITH_AS(validate(broken([](pipeline& p) {
                         p.transfer_occupied_s = {0, 1};
                       })),
                       "transfer_occupied_s[1] is more than the whole transfer takes", input_error);
  CHECK_NOTHROW(validate(broken([](pipeline& p) { p.gradient_transfer_s = p.gradient_transfer_occupied_s = {0, 1}; })));
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.gradient_transfer_occupied_s = {0, 1}; })), input_error);
  CHECK_THROWS_AS(validate(broken([](pipeline& p) { p.transfer_s[1] = std::numeric_limits<double>::infinity(); })), input_error);
}

TEST_CASE("warm-ups of arrays of t and c are those of the pipeline that they are of") {
  random_source random(11);
  for (int n = 0; n < 200; ++n) {
    const int stages = random.integer(1, 6);
    pipeline p;
    std::vector<double> t, c;
    for (int i = 0; i < stages; ++i) {
      p.forward_s.push_back(random.uniform(0, 1));
      p.backward_s.push_back(random.uniform(0, 2));
      t.push_back(p.forward_s.back() + p.backward_s.back());
      if (i + 1 < stages) c.push_back(random.uniform(0, 3));
    }
    p.transfer_s = c;
    CHECK(h1f1b_warmups(t, c) == warmup_counts(warmup_rule::h1f1b, p));
    CHECK(exact_warmups(t, c) == warmup_counts(warmup_rule::exact, p));
  }
}

TEST_CASE("warm-ups, steps and periods refuse what makes no sense, and say what") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const pipeline short_of_transfers{.forward_s = {1, 1}, .backward_s = {1, 1}, .transfer_s = {}};
  const pipeline p{.forward_s = {1, 1}, .backward_s = {1, 1}, .transfer_s = {0.5}};
  const std::vector<double> t{1, 1, 1}, c{1, 1};
  CHECK_THROWS_AS((void)best_period(short_of_transfers), input_error);
  CHECK_THROWS_AS((void)h1f1b_warmups(short_of_transfers, 2), input_error);
  CHECK_THROWS_AS((void)exact_warmups(short_of_transfers, 2), input_error);
  CHECK_THROWS_AS((void)gpipe_period(short_of_transfers), input_error);
  CHECK_THROWS_AS((void)slow_boundaries(short_of_transfers), input_error);
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact}) {
    CHECK_THROWS_AS((void)warmup_counts(rule, short_of_transfers), input_error);
    CHECK_THROWS_WITH_AS((void)warmup_counts(rule, p, -1), "epsilon is -1, expected a finite number of at least 0", input_error);
  }
  CHECK_THROWS_WITH_AS((void)h1f1b_warmups(p, 1), "the period is 1 s, expected at least the pipeline's best, 2 s", input_error);
  CHECK_THROWS_AS((void)exact_warmups(p, nan), input_error);
  CHECK_THROWS_WITH_AS((void)exact_warmups(t, std::vector<double>{1}),
                       "transfer_s has 1 values, expected 2, one per boundary between stages", input_error);
  CHECK_THROWS_WITH_AS((void)h1f1b_warmups(std::vector<double>{1, nan, 1}, c),
                       "compute_s[1] is nan, expected a finite number of at least 0", input_error);
  CHECK_THROWS_AS((void)h1f1b_step(nan, 1), input_error);
  CHECK_THROWS_AS((void)h1f1b_step(1, 0), input_error);
  CHECK_THROWS_AS((void)h1f1b_step(1, 1, inf), input_error);
  CHECK(h1f1b_step(0, 0) == 1);
  CHECK_THROWS_AS((void)exact_step(2, 0, 1, 0), input_error);
  CHECK_THROWS_AS((void)exact_step(1, -1, 1, 0), input_error);
  CHECK_THROWS_WITH_AS((void)one_f_one_b_warmups(-3), "the number of stages is -3, expected 1 to 16777216", input_error);
  CHECK_THROWS_AS((void)eager_warmups(0), input_error);
  CHECK_THROWS_AS((void)capped_warmups({1, 2}, {1}), input_error);
  CHECK_THROWS_AS((void)exact_warmups_within(p, {0, 1}), input_error);
}
