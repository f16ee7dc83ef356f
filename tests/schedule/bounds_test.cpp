// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/bounds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "random_pipeline.hpp"
#include "random_schedule.hpp"

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
    best = std::max({best, whole + (m - 1) * p.activation_occupied_s(i), whole + (m - 1) * p.gradient_occupied_s(i)});
  }
  return best;
}

/// The bounds for split backwards one by one, each written out with its sums.
double split_bounds_written_out(const pipeline& p, int microbatches) {
  const int last = p.stages() - 1;
  const double m = microbatches;
  const auto w = [&](int i) { return p.weight_backward_s.empty() ? 0.0 : p.weight_backward_s[static_cast<std::size_t>(i)]; };
  const auto f = [&](int i) { return p.forward_s[static_cast<std::size_t>(i)]; };
  const auto d = [&](int i) { return p.backward_s[static_cast<std::size_t>(i)] - w(i); };
  const auto there = [&](int i) {
    double sum = 0;
    for (int k = 0; k < i; ++k) sum += f(k) + p.activation_s(k);
    return sum;
  };
  const auto back = [&](int from) {  // the longest way back from the end of an input gradient that ends with a weight gradient
    double longest = 0;
    for (int to = 0; to <= from; ++to) {
      double sum = w(to);
      for (int k = to; k < from; ++k) sum += p.gradient_s(k) + d(k);
      longest = std::max(longest, sum);
    }
    return longest;
  };
  double best = 0;
  for (int i = 0; i <= last; ++i) {
    best = std::max(best, there(i) + m * p.compute_s(i));
    best = std::max(best, there(i) + m * (f(i) + d(i)) + back(i));
    const double whole = there(last) + f(last) + d(last) + back(last);
    best = std::max({best, whole + (m - 1) * f(i), whole + (m - 1) * d(i)});
    if (i < last)
      best = std::max({best, whole + (m - 1) * p.activation_occupied_s(i), whole + (m - 1) * p.gradient_occupied_s(i)});
  }
  return best;
}

/// One stage per rank, every backward split; weight gradients are put off at random.
schedule random_split_order(random_source& random, int stages, int microbatches) {
  using enum action_kind;
  const auto warmups = test::random_warmups(random, stages);
  std::vector<std::vector<test::plain_action>> ranks;
  for (int i = 0; i < stages; ++i) {
    auto& rank = ranks.emplace_back();
    const int put_off = random.integer(0, 2 * stages);
    int forwards = 0, weights = 0;
    while (forwards < std::min(warmups[static_cast<std::size_t>(i)], microbatches)) rank.push_back({forward, forwards++});
    for (int m = 0; m < microbatches; ++m) {
      rank.push_back({backward_input, m});
      if (forwards < microbatches) rank.push_back({forward, forwards++});
      while (weights + put_off <= m) rank.push_back({backward_weight, weights++});
    }
    while (weights < microbatches) rank.push_back({backward_weight, weights++});
  }
  return test::plain_schedule(microbatches, ranks);
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
  // Three seconds apart, they still do.
  auto overlapping = p;
  overlapping.gradient_transfer_occupied_s = {3};
  CHECK(makespan_lower_bound(overlapping, 11) == doctest::Approx(4 + 10.5 + 30));
  CHECK_THROWS_AS((void)makespan_lower_bound(p, 0), input_error);
  CHECK_THROWS_AS((void)makespan_lower_bound({}, 1), input_error);
}

TEST_CASE("the bound for split backwards is the largest of the bounds written out, and no split schedule beats it") {
  random_source random(43);
  int beaten = 0;
  double tightest = 1e9;
  for (int n = 0; n < 3000; ++n) {
    const int stages = random.integer(1, 6), m = random.integer(1, 20);
    auto p = test::random_pipeline(random, stages);
    for (const double b : p.backward_s) p.weight_backward_s.push_back(b * random.uniform());
    CAPTURE(test::text(p));
    CAPTURE(m);
    const double bound = split_backward_lower_bound(p, m);
    REQUIRE(bound == doctest::Approx(split_bounds_written_out(p, m)).epsilon(1e-12));
    REQUIRE(bound <= makespan_lower_bound(p, m) * (1 + 1e-12));
    const auto order = random_split_order(random, stages, m);
    CAPTURE(test::text(order));
    const double measured = simulate(p, order).makespan_s;
    REQUIRE(measured >= bound * (1 - 1e-12));
    REQUIRE(simulate(p, test::random_warmups(random, stages), m).makespan_s >= bound * (1 - 1e-12));
    tightest = std::min(tightest, measured / bound);
    beaten += measured < makespan_lower_bound(p, m) * (1 - 1e-9);

    p.weight_backward_s.clear();
    REQUIRE(split_backward_lower_bound(p, m) == doctest::Approx(makespan_lower_bound(p, m)).epsilon(1e-12));
  }
  CHECK(tightest == doctest::Approx(1).epsilon(1e-9));
  CHECK(beaten > 100);  // the bound for whole backwards does not hold for them
}

TEST_CASE("the bound of a workload: no order of the same computations beats it, wherever they are and whatever they share") {
  random_source random(44);
  int ran = 0;
  double tightest = 1e9, sum = 0;
  for (int n = 0; n < 6000; ++n) {
    const auto order = test::random_schedule(random);
    const auto w = test::random_workload(random, order);
    CAPTURE(test::text(order));
    CAPTURE(test::text(w));
    const double bound = makespan_lower_bound(w, order);
    double measured = 0;
    try {
      measured = simulate(w, order, {.timeline = false}).makespan_s;
    } catch (const input_error&) {
      continue;
    }
    ++ran;
    REQUIRE(measured >= bound * (1 - 1e-12));
    if (bound <= 0) continue;
    tightest = std::min(tightest, measured / bound);
    sum += bound / measured;
  }
  CHECK(ran > 2000);
  CHECK(tightest == doctest::Approx(1).epsilon(1e-9));
  CHECK(sum / ran > 0.6);
}

TEST_CASE("a wire with room for two is half as long a bound") {
  const auto order = gpipe(2, 8);
  auto w = make_workload({{1, 1}, {1, 1}, {10}, {0}}, order);
  CHECK(makespan_lower_bound(w, order) == 1 + 80 + 3);
  CHECK(simulate(w, order).makespan_s == 1 + 80 + 1 + 8 + 1);
  w.wires[0].capacity = 2;
  CHECK(makespan_lower_bound(w, order) == 1 + 40 + 3);
  CHECK(simulate(w, order).makespan_s == 2 + 40 + 1 + 8 + 1);
}

TEST_CASE("the bound of a workload is near that of its pipeline, and below it with several virtual stages per rank") {
  random_source random(45);
  for (int n = 0; n < 1000; ++n) {
    const int stages = random.integer(1, 6), m = random.integer(1, 20);
    auto p = test::random_pipeline(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(m);
    const auto order = gpipe(stages, m);
    const double of_pipeline = makespan_lower_bound(p, m), bound = makespan_lower_bound(make_workload(p, order), order);
    REQUIRE(bound <= of_pipeline * (1 + 1e-12));
    REQUIRE(bound >= of_pipeline * 0.5);
    if (m == 1) REQUIRE(bound == doctest::Approx(of_pipeline).epsilon(1e-12));
  }
  const auto p = test::balanced(4, 1.0);
  const auto order = interleaved_1f1b(4, 2, 8);
  const double bound = makespan_lower_bound(make_workload(p, order), order);
  CHECK(makespan_lower_bound(p, 8) == doctest::Approx(8 + 3));
  CHECK(bound == doctest::Approx(8 + 1.5));  // rank 3 waits for three halves of a stage, both ways
  CHECK(simulate(p, order).makespan_s == doctest::Approx(8 + 1.5));
  auto elsewhere = order;
  elsewhere.lanes[0].actions[0].stage = 99;
  CHECK_THROWS_AS((void)makespan_lower_bound(make_workload(p, order), elsewhere), input_error);
  CHECK_THROWS_AS((void)makespan_lower_bound(make_workload(p, order), gpipe(4, 8)), input_error);
}
