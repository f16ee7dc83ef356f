// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/first_plan.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;

namespace {

// Hosts of one device each, all joined.
cluster hosts(int count) {
  cluster c;
  for (int k = 0; k < count; ++k) {
    c.subclusters.push_back({"h" + std::to_string(k), *find_device("RTX3090"), 1, 1, {}, {}});
    for (int other = 0; other < k; ++other) c.links.push_back({other, k, {1e-3, 1e9}});
  }
  return c;
}

struct noting_costs : analytic_cost_model {
  std::set<int>* asked;
  noting_costs(const cluster& hardware, const layer_chain& chain, std::set<int>& seen)
      : analytic_cost_model(hardware, chain), asked(&seen) {}
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    asked->insert(mesh.subcluster);
    return analytic_cost_model::placements(mesh);
  }
};

}  // namespace

TEST_CASE("a first plan fits, and takes a look at a part of the cluster only") {
  const auto hardware = hosts(80);
  // Some 3 billion parameters: more than two hosts hold.
  const auto chain = make_chain(gpt({.layers = 24, .hidden = 3200, .heads = 32, .vocab = 32000, .sequence = 512}));
  for (const auto& entry : hetsched::test::share_of(planners())) {
    if (entry.name == "hetauto_exact") continue;  // knows ten subclusters at the most
    CAPTURE(std::string(entry.name));
    std::set<int> asked;
    const noting_costs costs(hardware, chain, asked);
    const plan_request request{.global_batch = 16, .microbatch_size = 1};
    const auto found = first_plan(
        hardware, [&](int) -> const auto& { return costs; }, request, entry);
    REQUIRE(found);
    if (entry.slow_start) CHECK(asked.size() < 40);
    CHECK(found->planner == entry.name);
    CHECK(sample_count(*found) == 16);
    if (entry.one_pipeline) CHECK(found->pipelines.size() == 1);
    REQUIRE(found->evidence);
    CHECK_FALSE(found->evidence->complete);
    CHECK(found->evidence->objective_bound == 0);
    const auto judged = evaluate(hardware, costs, *found);
    REQUIRE(judged);
    CHECK(judged->shortage.empty());
    CHECK(objective_of(judged->plan) == doctest::Approx(objective_of(*found)));
    // Nobody knows it to be bad who has the same time: the default planner's is the best of its kind.
    if (entry.name == "interop_dp" || entry.name == "hexiscale") {
      const auto of_default = first_plan(
          hardware, [&](int) -> const auto& { return costs; }, request, planners().front());
      REQUIRE(of_default);
      CHECK(objective_of(*of_default) <= objective_of(*found) * (1 + 1e-9));
    }
  }
}

TEST_CASE("where no part holds the model, all of a small cluster does or is said not to") {
  const auto chain = make_chain(gpt({.layers = 24, .hidden = 3200, .heads = 32, .vocab = 32000, .sequence = 512}));
  const auto of = [&](int count, bool all) {
    const auto hardware = hosts(count);
    return first_plan(
        hardware, [&](int) { return analytic_cost_model(hardware, chain); },
        {.global_batch = 16, .microbatch_size = 1, .use_all_devices = all}, planners().front());
  };
  const auto few = of(1, false);
  REQUIRE_FALSE(few);
  CHECK(few.why_not().why == refusal::kind::infeasible);
  const auto every = of(6, true);
  REQUIRE(every);
  int used = 0;
  for (const auto& line : every->pipelines)
    for (const auto& s : line.stages) used += device_count(s.devices);
  CHECK(used == 6);
  CHECK_FALSE(of(80, true));  // who does not wait
}
