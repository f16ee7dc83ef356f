// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/model/families.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;
using test::sanitizer_share;
using test::sweep_share;

namespace {

struct question {
  cluster hardware;
  transformer model;
  training_cost_options costs;
  plan_request request;
};

cluster random_cluster(random_source& random) {
  const char* kinds[]{"A100-SXM4-40GB", "V100-SXM2-32GB", "RTX3090", "H100-SXM5-80GB"};
  cluster c;
  const int subclusters = random.integer(1, 3);
  for (int k = 0; k < subclusters; ++k) {
    auto device = *find_device(kinds[random.integer(0, 3)]);
    device.memory_bytes = static_cast<bytes_t>(static_cast<double>(device.memory_bytes) * random.uniform(0.2, 1));
    c.subclusters.push_back({"s" + std::to_string(k),
                             device,
                             random.integer(1, 2),
                             1 << random.integer(0, 2),
                             {5e-6, random.uniform(1e10, 3e11)},
                             {2e-5, random.uniform(1e9, 2e10)}});
    for (int j = 0; j < k; ++j) c.links.push_back({.a = j, .b = k, .link = {1e-4, random.uniform(2e8, 1e10)}});
  }
  return c;
}

question random_question(random_source& random) {
  question q{.hardware = random_cluster(random),
             .model = gpt({.layers = random.integer(4, 16),
                           .hidden = 512 * random.integer(1, 6),
                           .heads = 8,
                           .vocab = 32000,
                           .sequence = 512 * random.integer(1, 4)}),
             .costs = {.cut = granularity::block},
             .request = {}};
  q.request.global_batch = 1 << random.integer(0, 6);
  return q;
}

outcome<plan> answer(const question& q) { return find_plan(q.hardware, q.model, q.request, q.costs); }

}  // namespace

// Whole searches: minutes under a sanitizer.
TEST_CASE("a larger space is never worse, and the default planner never worse than another" *
          doctest::skip(sanitizer_share > 1)) {
  random_source random(45);
  int pairs = 0, better = 0;
  for (int n = 0; n < 25 / sweep_share; ++n) {
    CAPTURE(n);
    const auto whole = random_question(random);
    const auto best = answer(whole);
    const auto check = [&](const std::string& what, const outcome<plan>& part) {
      INFO(what);
      if (!part) return;
      REQUIRE(best);
      ++pairs;
      better += objective_of(*best) < objective_of(*part) * 0.999;
      // Searches end within a thousandth.
      CHECK(objective_of(*best) <= objective_of(*part) * 1.001);
      CHECK(best->evidence->objective_bound <= objective_of(*part) * (1 + 1e-9));
      if (best->evidence->complete) CHECK(objective_of(*part) >= objective_of(*best) * (1 - 1.001e-3));
    };
    const auto with = [&](auto change) {
      auto part = whole;
      change(part);
      return answer(part);
    };
    check("no recomputation", with([](question& q) { q.costs.recompute = {recomputation::none}; }));
    check("ZeRO 1", with([](question& q) { q.costs.zero = {1}; }));
    const int size = 1 << random.integer(0, 2);
    if (whole.request.global_batch % size == 0)
      check("microbatches of " + std::to_string(size), with([&](question& q) { q.request.microbatch_size = size; }));
    check("fewer devices", with([](question& q) {
            auto& all = q.hardware.subclusters;
            if (all.back().nodes > 1) {
              --all.back().nodes;
            } else if (all.size() > 1) {
              std::erase_if(q.hardware.links, [&](const auto& l) { return l.b == static_cast<int>(all.size()) - 1; });
              all.pop_back();
            }
          }));
    check("all devices in use", with([](question& q) { q.request.use_all_devices = true; }));
    for (const auto& other : planners().subspan(1))
      if (other.name != "hetauto" || n % 4 == 0)
        check(std::string(other.name), with([&](question& q) { q.request.planner = other.name; }));
  }
  MESSAGE(pairs << " pairs, " << better << " where the larger space is better");
  CHECK(pairs > 150 / sweep_share);
}
