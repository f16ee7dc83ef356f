// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/search/min_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>

#include "auto_instances.hpp"

using namespace hetsched;
using hetsched::test::optimum;

TEST_CASE("least memory for a makespan, against the least cap for which the optimum is in time") {
  random_source random(21);
  int proved = 0, least_found = 0;
  for (int n = 0; n < 150; ++n) {
    auto instance = test::random_auto_instance(random);
    const auto with_cap = [&](double cap) {
      instance.caps.assign(instance.f.size(), cap);
      const auto best = optimum(instance);
      REQUIRE(best.proved);
      return best.optimum;
    };
    const double makespan_s = with_cap(instance.microbatches) * random.uniform(1.0, 1.6) * (1 + 1e-9);
    double least = 1;
    while (with_cap(least) > makespan_s) ++least;
    INFO(test::text(instance), " makespan ", makespan_s);
    const auto found = min_memory(test::to_pipeline(instance), instance.microbatches, makespan_s);
    if (!found) continue;  // auto missed an optimum that the makespan hardly exceeds
    CHECK(found->best.makespan_s <= makespan_s);
    CHECK(found->peak_memory == *std::max_element(found->best.peak_memory.begin(), found->best.peak_memory.end()));
    CHECK(found->memory_lower_bound <= least);
    CHECK(found->peak_memory >= least);
    proved += found->memory_lower_bound == found->peak_memory;
    least_found += found->peak_memory == least;
  }
  CHECK(least_found >= 140);
  CHECK(proved >= 75);
}

TEST_CASE("least memory: its bound also holds where an input gradient frees a part of the activation") {
  random_source random(22);
  int found_any = 0;
  for (int n = 0; n < 100; ++n) {
    auto instance = test::random_auto_instance(random);
    instance.held = 0.5;
    const auto optimum_with = [&](double cap) {
      instance.caps.assign(instance.f.size(), cap);
      return optimum(instance).optimum;
    };
    const double makespan_s = optimum_with(instance.microbatches) * random.uniform(1.0, 1.6) * (1 + 1e-9);
    double least = 1;
    while (optimum_with(least) > makespan_s) least += 0.5;
    INFO(test::text(instance), " makespan ", makespan_s);
    auto held = instance;
    held.held = 1;
    const auto found = min_memory(test::to_pipeline(held), instance.microbatches, makespan_s, {.weight_backward_share = 0.5});
    if (!found) continue;
    ++found_any;
    CHECK(found->memory_lower_bound <= least);
    CHECK(found->peak_memory >= least);
  }
  CHECK(found_any >= 90);
}

TEST_CASE("stages that may be cut: no bound for one stage per rank is claimed") {
  random_source random(24);
  for (int n = 0; n < 30; ++n) {
    const auto instance = test::random_auto_instance(random);
    auto p = test::to_pipeline(instance);
    for (auto& s : p.transfer_s) s *= 0.05;
    p.gradient_transfer_s.clear();
    const auto_options options{.memory_capacity = std::vector<double>(instance.f.size(), 8), .cut_stages = true};
    const auto lean = auto_with_little_memory(p, 8, options);
    REQUIRE(lean);
    const auto costs = make_workload(p, lean->order);
    CHECK(lean->lower_bound_s <= lean->makespan_s);
    if (lean->order.stages != lean->order.ranks)
      CHECK(lean->lower_bound_s <= makespan_lower_bound(costs, lean->order) * (1 + 1e-12));
    const auto least = min_memory(p, 8, lean->makespan_s, options);
    REQUIRE(least);
    CHECK(least->memory_lower_bound == 0);
    auto whole = options;
    whole.split_backward = false;
    CHECK(!detail::splits_backwards(auto_schedule(p, 8, whole)->order));
  }
}

TEST_CASE("auto with little memory: as fast to 0.1 %, never more memory, much less where it brings nothing") {
  random_source random(23);
  double share = 0;
  constexpr int instances = 100;
  for (int n = 0; n < instances; ++n) {
    const auto instance = test::random_auto_instance(random);
    const auto p = test::to_pipeline(instance);
    const auto_options roomy{.memory_capacity = std::vector<double>(instance.f.size(), 32)};
    const auto plain = auto_schedule(p, 24, roomy), lean = auto_with_little_memory(p, 24, roomy);
    INFO(test::text(instance));
    REQUIRE(lean);
    CHECK(lean->makespan_s <= plain->makespan_s * 1.0011);
    CHECK(lean->lower_bound_s <= lean->makespan_s);
    CHECK(lean->lower_bound_s ==
          doctest::Approx(plain->lower_bound_s).epsilon(1e-12));  // orders that end alike may differ by rounding
    const auto most = [](const auto_result& r) { return *std::max_element(r.peak_memory.begin(), r.peak_memory.end()); };
    CHECK(most(*lean) <= most(*plain));
    share += most(*lean) / most(*plain) / instances;
  }
  CHECK(share < 0.7);
}

TEST_CASE("least memory: one microbatch at a time is enough for a long makespan, and too short a makespan is refused") {
  const pipeline p{.forward_s = {1, 1, 1}, .backward_s = {2, 2, 2}, .transfer_s = {0.5, 0.5}};
  const auto patient = min_memory(p, 4, 4 * (9 + 2));
  REQUIRE(patient);
  CHECK(patient->peak_memory == 1);
  CHECK(patient->memory_lower_bound == 1);
  const auto refused = min_memory(p, 4, 5);
  REQUIRE(!refused);
  CHECK(refused.why_not().reason.find("no schedule was found that ends within") == 0);
}
