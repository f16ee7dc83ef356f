// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/bounds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/simulate.hpp>
#include <hetsched/schedule/warmup.hpp>

#include "random_pipeline.hpp"

using namespace hetsched;

namespace {

/// The bounds one by one, each written out with its sums.
double bounds_written_out(const pipeline& p, int microbatches) {
  const int last = p.stages() - 1;
  const double m = microbatches;
  double best = 0;
  for (int i = 0; i <= last; ++i) {
    const auto k = static_cast<std::size_t>(i);
    double before = 0, after = 0, around = 0;  // around: the round trips from stage i on
    for (int j = 0; j < i; ++j) before += p.compute_s(j) + p.activation_s(j) + p.gradient_s(j);
    for (int j = i + 1; j <= last; ++j) after += p.compute_s(j);
    for (int j = i; j < last; ++j) around += p.activation_s(j) + p.gradient_s(j);
    best = std::max(best, before + m * p.compute_s(i));
    best = std::max(best, before + m * p.forward_s[k] + after + around + p.backward_s[k]);
    best = std::max(best, before + p.forward_s[k] + after + around + m * p.backward_s[k]);
    if (i == last) continue;
    const double whole = before + p.compute_s(i) + after + around;
    best = std::max({best, whole + (m - 1) * p.activation_s(i), whole + (m - 1) * p.gradient_s(i)});
  }
  return best;
}

}  // namespace

TEST_CASE("the bound is the largest of the bounds written out, and no schedule beats it") {
  random_source random(41);
  double tightest = 1e9;
  for (int n = 0; n < 2000; ++n) {
    const int stages = random.integer(1, 8), m = random.integer(1, 50);
    const auto p = test::random_pipeline(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(m);
    const double bound = makespan_lower_bound(p, m);
    REQUIRE(bound == doctest::Approx(bounds_written_out(p, m)).epsilon(1e-12));
    std::vector<std::vector<int>> all{std::vector<int>(p.forward_s.size(), m), test::random_warmups(random, stages)};
    for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
      all.push_back(warmup_counts(rule, p));
    for (const auto& warmups : all) {
      CAPTURE(test::text(warmups));
      const double measured = makespan(p, warmups, m);
      REQUIRE(measured >= bound * (1 - 1e-12));
      tightest = std::min(tightest, measured / bound);
    }
  }
  CHECK(tightest == doctest::Approx(1).epsilon(1e-9));  // some schedule reaches its bound
}

TEST_CASE("the bound is reached by balanced pipelines with one slow link") {
  for (int stages = 2; stages <= 16; ++stages) {
    auto p = test::balanced(stages, 1.0);
    p.transfer_s.back() = 0.7;
    const auto warmups = h1f1b_warmups(p, 1.0, 0.0);
    CHECK(makespan(p, warmups, 100) == doctest::Approx(makespan_lower_bound(p, 100)).epsilon(1e-12));
  }
}

TEST_CASE("slow gradients bound a pipeline by themselves") {
  const pipeline p{{1, 1}, {1, 1}, {0.5}, {10}};
  CHECK(makespan_lower_bound(p, 11) == doctest::Approx(4 + 10.5 + 100));
  CHECK_THROWS_AS((void)makespan_lower_bound(p, 0), input_error);
  CHECK_THROWS_AS((void)makespan_lower_bound({}, 1), input_error);
}
