// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/fuller_warmups.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>

#include "../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("warm-ups of the shortest makespan: against all counts within the caps") {
  random_source random(515);
  int best = 0;
  constexpr int trials = 200;
  for (int n = 0; n < trials; ++n) {
    CAPTURE(n);
    const int stages = random.integer(1, 4), microbatches = random.integer(1, 7);
    pipeline p;
    std::vector<int> caps;
    for (int i = 0; i < stages; ++i) {
      p.forward_s.push_back(random.uniform(0.5, 1.5));
      p.backward_s.push_back(random.uniform(1, 3));
      if (i + 1 < stages) p.transfer_s.push_back(random.uniform(0, 2));
      caps.push_back(random.integer(1, 7));
    }
    double least = infinity;
    std::vector<int> counts(caps.size());
    const std::function<void(std::size_t, int)> choose = [&](std::size_t i, int most) {
      if (i == caps.size()) {
        least = std::min(least, makespan(p, counts, microbatches));
        return;
      }
      for (counts[i] = 1; counts[i] <= std::min(most, caps[i]); ++counts[i]) {
        const int own = counts[i];
        choose(i + 1, own);
        counts[i] = own;
      }
    };
    choose(0, microbatches);
    const auto found = shortest_warmups(p, caps, microbatches);
    REQUIRE(found.counts.size() == caps.size());
    for (std::size_t i = 0; i < caps.size(); ++i) {
      CHECK(found.counts[i] <= caps[i]);
      CHECK((i == 0 || found.counts[i] <= found.counts[i - 1]));
    }
    CHECK(found.makespan_s == doctest::Approx(makespan(p, found.counts, microbatches)));
    CHECK(found.makespan_s >= least * (1 - 1e-12));
    CHECK(found.makespan_s <= least * 1.1);
    best += found.makespan_s <= least * (1 + 1e-9);
  }
  CHECK(best > trials * 95 / 100);
}

TEST_CASE("an evaluated plan is filled as far as memory allows, and no further") {
  // Two unlike stages whose activations take a MiB each of a device of 64.
  auto hardware = plain_cluster(2, 1);
  for (auto& s : hardware.subclusters) s.device.memory_bytes = 64 * mib;
  stub_costs costs;
  for (int l = 0; l < 2; ++l) {
    costs.layers.push_back(
        {.forward_s = l == 0 ? 1.02 : 1.0, .backward_s = l == 0 ? 2.1 : 2.0, .weight_bytes = mib, .activation_bytes = 12 * mib});
    costs.updates.push_back(0);
  }
  costs.boundaries.emplace_back(0.9);
  plan p{.pipelines = {{.microbatches = 40, .schedule = {.name = "exact_1f1b"}}}};
  p.pipelines[0].stages = {on_device({0, 1}, 0, 0, 0), on_device({1, 2}, 1, 0, 0)};
  const auto least = evaluate(hardware, costs, p);
  REQUIRE(least);
  const auto filled = evaluate_filled(hardware, costs, p, {});
  REQUIRE(filled);
  CHECK(filled->predicted.iteration_s <= least->plan.predicted.iteration_s);
  for (const auto& s : filled->pipelines[0].stages) CHECK(s.memory_bytes <= s.memory_capacity_bytes);
  CHECK(filled->pipelines[0].stages[0].warmup >= least->plan.pipelines[0].stages[0].warmup);
  auto again = *filled;
  CHECK(!fill_warmups(again));
}
