// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/search/auto_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/search/detail/order_bound.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../random_pipeline.hpp"
#include "auto_instances.hpp"

using namespace hetsched;
using hetsched::test::judge_instance;
using hetsched::test::optimum;

namespace {

/// Unequal stages, each with a weight gradient of 0.6 to 1.1 forwards; transfers of up to `slowest_link`.
pipeline random_split_pipeline(random_source& random, int stages, double fastest, double slowest_link) {
  pipeline p;
  for (int i = 0; i < stages; ++i) {
    const double f = random.uniform(1.0, fastest + 1e-9), w = f * random.uniform(0.6, 1.1);
    p.forward_s.push_back(f);
    p.backward_s.push_back(f * random.uniform(0.8, 1.3) + w);
    p.weight_backward_s.push_back(w);
    if (i > 0) p.transfer_s.push_back(random.uniform(0.0, slowest_link + 1e-9));
  }
  return p;
}

/// `share` times the microbatches that 1F1B holds.
std::vector<double> memory_of_1f1b(int stages, double share) {
  std::vector<double> caps;
  for (int i = 0; i < stages; ++i) caps.push_back(std::max(1.0, static_cast<double>(static_cast<int>(share * (stages - i)))));
  return caps;
}

void require_sound(const pipeline& p, const auto_result& r, const auto_options& options) {
  const auto findings = check(r.order);
  REQUIRE_MESSAGE(findings.empty(), findings.front());
  auto costs = make_workload(p, r.order);
  for (auto& w : costs.work) w.weight_backward_bytes = w.activation_bytes * options.weight_backward_share;
  const auto played = simulate(costs, r.order);
  CHECK(played.makespan_s == doctest::Approx(r.makespan_s).epsilon(1e-12));
  for (std::size_t i = 0; i < r.peak_memory.size(); ++i) {
    CHECK(played.peak_memory_bytes[i] == doctest::Approx(r.peak_memory[i]));
    if (!options.memory_capacity.empty()) CHECK(r.peak_memory[i] <= options.memory_capacity[i] * (1 + 1e-9));
  }
  CHECK(r.lower_bound_s <= r.makespan_s);
}

double bound_of(const pipeline& p, int microbatches, const auto_options& options) {
  return detail::order_bound(detail::make_order_problem(p, microbatches, options)).seconds();
}

}  // namespace

TEST_CASE("auto against the optimum: 500 small mixed pipelines with slow links, with little and with more memory") {
  for (const int least_cap : {1, 3}) {
    const auto judged = test::compare_with_optimum(test::auto_instances(500, least_cap), [](const judge_instance& instance) {
      const auto p = test::to_pipeline(instance);
      const auto_options options{.memory_capacity = instance.caps};
      const auto found = auto_schedule(p, instance.microbatches, options);
      REQUIRE_MESSAGE(found, test::text(instance));
      INFO(test::text(instance));
      require_sound(p, *found, options);
      return found->makespan_s;
    });
    MESSAGE("caps from " << least_cap << ": mean " << judged.mean << ", worst " << judged.worst << ", optimal " << judged.optimal
                         << " of 500");
    CHECK_MESSAGE(judged.unproved == 0, "the judge gave up");
    CHECK_MESSAGE(judged.below == 0, judged.below_instance);
    CHECK(judged.mean <= 1.003);
    CHECK_MESSAGE(judged.worst <= 1.03, judged.worst_instance);
  }
}

TEST_CASE("auto and its lower bound against the optimum: transfers that follow each other before they arrive") {
  auto instances = test::auto_instances(250, 3);
  random_source random(12);
  for (auto& instance : instances) test::let_transfers_overlap(random, instance);
  int tight = 0;
  const auto judged = test::compare_with_optimum(instances, [&](const judge_instance& instance) {
    const auto p = test::to_pipeline(instance);
    const auto_options options{.memory_capacity = instance.caps};
    const auto found = auto_schedule(p, instance.microbatches, options);
    REQUIRE_MESSAGE(found, test::text(instance));
    INFO(test::text(instance));
    require_sound(p, *found, options);
    CHECK(bound_of(p, instance.microbatches, options) <= optimum(instance).optimum * (1 + 1e-9));
    tight += found->gap() < 1e-9;
    return found->makespan_s;
  });
  CHECK_MESSAGE(judged.unproved == 0, "the judge gave up");
  CHECK_MESSAGE(judged.below == 0, judged.below_instance);
  CHECK(judged.mean <= 1.003);
  CHECK_MESSAGE(judged.worst <= 1.03, judged.worst_instance);
  CHECK(tight >= 60);  // else the bound says little
}

TEST_CASE("auto and its lower bound against the optimum: half the activation freed early, and backwards in one piece") {
  random_source random(11);
  double worst = 1;
  int tight = 0;
  for (int n = 0; n < 400; ++n) {
    auto instance = test::random_auto_instance(random, 1 + n % 4);
    auto_options options{.memory_capacity = instance.caps};
    auto p = test::to_pipeline(instance);
    if (n % 2 == 0) {
      instance.held = options.weight_backward_share = random.uniform(0.0, 1.0);
    } else {  // a whole backward is an input gradient that leaves nothing to do
      options.split_backward = n % 4 == 1;
      if (options.split_backward) p.weight_backward_s.clear();
      for (std::size_t i = 0; i < instance.w.size(); ++i) instance.b[i] += instance.w[i], instance.w[i] = 0;
      instance.held = 0;
    }
    INFO(test::text(instance));
    const auto best = optimum(instance);
    REQUIRE(best.proved);
    const auto found = auto_schedule(p, instance.microbatches, options);
    REQUIRE(found);
    require_sound(p, *found, options);
    CHECK(found->makespan_s >= best.optimum * (1 - 1e-9));
    CHECK(bound_of(p, instance.microbatches, options) <= best.optimum * (1 + 1e-9));
    worst = std::max(worst, found->makespan_s / best.optimum);
    tight += found->gap() < 1e-9;
  }
  CHECK(worst <= 1.03);
  CHECK(tight >= 200);  // else the bound says little
}

TEST_CASE("auto is within 2 % of its lower bound on 8 to 64 ranks with twice the memory of 1F1B") {
  random_source random(5);
  double worst = 0;
  for (const int stages : {8, 12, 16, 32, 64})
    for (int n = 0; n < (stages > 16 ? 2 : 6); ++n) {
      const int microbatches = stages * random.integer(2, 6);
      // In this order: compilers differ in that of arguments, and some other instances are up to 2.5 % away.
      const double link = random.integer(0, 2) == 0 ? 0.0 : 3.0;
      const double spread = random.integer(0, 1) == 0 ? 1.0 : 2.4;
      const auto p = random_split_pipeline(random, stages, spread, link);
      const auto_options options{.memory_capacity = memory_of_1f1b(stages, 2)};
      const auto found = auto_schedule(p, microbatches, options);
      REQUIRE(found);
      CAPTURE(test::text(p));
      CAPTURE(microbatches);
      CHECK(found->gap() <= 0.02);
      worst = std::max(worst, found->gap());
      if (n == 0) require_sound(p, *found, options);
    }
  MESSAGE("worst gap " << worst);
}

TEST_CASE("auto is never worse than a builder that fits in memory") {
  random_source random(8);
  for (int n = 0; n < 150; ++n) {
    const int stages = random.integer(1, 7), microbatches = random.integer(1, 24);
    auto p =
        n % 3 == 0 ? test::random_pipeline(random, stages) : random_split_pipeline(random, stages, 3, random.uniform(0.0, 6.0));
    if (n % 5 == 0)
      for (int i = 0; i < stages; ++i) p.activation_bytes.push_back(random.uniform(0.5, 2.0));
    auto_options options{.rounds = 1};
    if (n % 2 == 0)
      for (int i = 0; i < stages; ++i)
        options.memory_capacity.push_back((p.activation_bytes.empty() ? 1 : p.activation_bytes[static_cast<std::size_t>(i)]) *
                                          random.integer(1, 2 * stages));
    const auto found = auto_schedule(p, microbatches, options);
    INFO(test::text(p), " ", microbatches, " ", test::text(options.memory_capacity));
    REQUIRE(found);
    require_sound(p, *found, options);
    std::vector<schedule> built{gpipe(stages, microbatches), zb_h1(stages, microbatches), zb_h2(stages, microbatches)};
    for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
      built.push_back(one_f_one_b(warmup_counts(rule, p), microbatches));
    for (const auto& order : built) {
      const auto played = simulate(p, order);
      bool fits = true;
      for (std::size_t i = 0; i < options.memory_capacity.size(); ++i)
        fits = fits && played.peak_memory_bytes[i] <= options.memory_capacity[i];
      if (fits) CHECK(found->makespan_s <= played.makespan_s * (1 + 1e-12));
    }
  }
}

TEST_CASE("auto with stages that may be cut is never worse than any builder that fits in memory") {
  random_source random(9);
  int cut = 0;
  for (int n = 0; n < 60; ++n) {
    const int stages = random.integer(1, 6), microbatches = random.integer(1, 16);
    const auto p = random_split_pipeline(random, stages, random.integer(0, 1) == 0 ? 1.0 : 2.0, random.uniform(0.0, 1.0));
    auto_options options{.cut_stages = true};
    if (n % 2 == 0) options.memory_capacity = memory_of_1f1b(stages, 2);
    INFO(test::text(p), " ", microbatches);
    const auto found = auto_schedule(p, microbatches, options);
    REQUIRE(found);
    require_sound(p, *found, options);
    cut += found->order.stages != stages || found->order.directions != 1;
    for (const auto name : schedule_names()) {
      schedule order;
      try {
        order = build_schedule(name, p, microbatches);
      } catch (const input_error&) {
        continue;
      }
      const auto played = simulate(p, order);
      bool fits = true;
      for (std::size_t i = 0; i < options.memory_capacity.size(); ++i)
        fits = fits && played.peak_memory_bytes[i] <= options.memory_capacity[i];
      if (fits) CHECK_MESSAGE(found->makespan_s <= played.makespan_s * (1 + 1e-12), name);
    }
  }
  CHECK(cut >= 10);
}

TEST_CASE("auto: the same answer every time, and plain answers for plain pipelines") {
  random_source random(3);
  const auto p = random_split_pipeline(random, 6, 2.4, 3);
  const auto_options options{.memory_capacity = memory_of_1f1b(6, 1.5)};
  CHECK(auto_schedule(p, 20, options)->order == auto_schedule(p, 20, options)->order);

  const auto single = auto_schedule({.forward_s = {1}, .backward_s = {2}, .transfer_s = {}}, 5);
  CHECK(single->makespan_s == 15);
  CHECK(single->gap() == 0);

  // Equal stages with F = B = W and the memory of ZB-H2: no rank idles after its first forward.
  const int ranks = 4, microbatches = 12;
  const pipeline equal{
      .forward_s = {1, 1, 1, 1}, .backward_s = {2, 2, 2, 2}, .transfer_s = {0, 0, 0}, .weight_backward_s = {1, 1, 1, 1}};
  const auto found = auto_schedule(equal, microbatches, {.memory_capacity = std::vector<double>(4, 2 * ranks - 1)});
  CHECK(found->makespan_s == ranks - 1 + 3 * microbatches);
  CHECK(found->gap() == 0);
}

TEST_CASE("auto: capacities that are whole activations but for rounding") {
  random_source random(13);
  for (int n = 0; n < 300; ++n) {
    const int stages = random.integer(2, 4), microbatches = random.integer(1, 300);
    auto p = random_split_pipeline(random, stages, 2, 1);
    auto_options options{.weight_backward_share = random.integer(0, 1) == 0 ? 1 : random.uniform(), .rounds = 1};
    const double activation = random.uniform(0.1, 1.0), off = 1 + random.integer(-1, 1) * 9e-10;
    for (int i = 0; i < stages; ++i) {
      p.activation_bytes.push_back(activation);
      options.memory_capacity.push_back(activation * (stages - i) * off);
    }
    INFO(test::text(p), " ", microbatches, " ", test::text(options.memory_capacity), " ", options.weight_backward_share);
    const auto found = auto_schedule(p, microbatches, options);
    REQUIRE(found);
    // 1F1B fits, so it may not be beaten.
    CHECK(found->makespan_s <= makespan(p, one_f_one_b_warmups(stages), microbatches) * (1 + 1e-12));
  }
}

TEST_CASE("auto: what it refuses and what it throws at") {
  const pipeline p{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0}, .activation_bytes = {10, 10}};
  const auto refused = auto_schedule(p, 4, {.memory_capacity = {10, 9}});
  REQUIRE(!refused);
  CHECK(refused.why_not().reason.find("stage 1 does not hold one microbatch") == 0);
  CHECK_THROWS_AS((void)auto_schedule(p, 0), input_error);
  CHECK_THROWS_AS((void)auto_schedule(p, 1'000'000'000), input_error);
  CHECK_THROWS_AS((void)auto_schedule(p, 4, {.memory_capacity = {10}}), input_error);
  CHECK_THROWS_AS((void)auto_schedule(p, 4, {.weight_backward_share = 1.5}), input_error);
  CHECK_THROWS_AS((void)auto_schedule({}, 4), input_error);
  CHECK_THROWS_AS((void)auto_schedule(p, 4, {.memory_capacity = {10, std::numeric_limits<double>::quiet_NaN()}}), input_error);
  CHECK(!auto_schedule(p, 4, {.memory_capacity = {10, -1}}));
  const pipeline endless{.forward_s = {9e299, 9e299}, .backward_s = {9e299, 9e299}, .transfer_s = {0}};
  CHECK_THROWS_AS((void)auto_schedule(endless, 4), input_error);
}
