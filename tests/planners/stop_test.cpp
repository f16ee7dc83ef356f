// SPDX-License-Identifier: Apache-2.0
// Searches that go_on ends, at many of its polls: each planner ends soon, with a plan or a refusal of kind stopped.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/planners.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;

namespace {

cluster few_kinds(int subclusters) {
  const char* kinds[]{"V100-SXM2-32GB", "A100-SXM4-40GB", "T4"};
  cluster c;
  for (int k = 0; k < subclusters; ++k) {
    c.subclusters.push_back(
        {"s" + std::to_string(k), *find_device(kinds[k % 3]), 1, k < 2 ? 2 : 1, {5e-6, 150e9}, {10e-6, 25e9 / 8}});
    for (int other = 0; other < k; ++other) c.links.push_back({other, k, {1e-4, 1e9}});
  }
  return c;
}

/// Counts what is asked after the search was told to end.
struct watch {
  std::int64_t polls = 0, polls_before_end = 0;
  int questions = 0;
  [[nodiscard]] bool go_on() { return ++polls <= polls_before_end; }
  void ask() { questions += polls > polls_before_end; }
};

struct watched_costs : analytic_cost_model {
  watch* on;
  watched_costs(const cluster& hardware, const layer_chain& chain, watch& w) : analytic_cost_model(hardware, chain), on(&w) {}
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    on->ask();
    return analytic_cost_model::placements(mesh);
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    on->ask();
    return analytic_cost_model::layer(index, where);
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    on->ask();
    return analytic_cost_model::transfer(boundary, from, to, near);
  }
};

layer_chain small_model() { return make_chain(gpt({.layers = 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512})); }

}  // namespace

TEST_CASE("every planner ends soon after any poll, with a plan or because it was stopped") {
  const auto chain = small_model();
  for (const int subclusters : {2, 5}) {
    const auto hardware = few_kinds(subclusters);
    for (const auto& entry : planners()) {
      CAPTURE(subclusters);
      CAPTURE(std::string(entry.name));
      watch seen;
      const watched_costs costs(hardware, chain, seen);
      int plans = 0, refusals = 0;
      constexpr std::int64_t step = test::sanitizer_share > 1 ? 8 : 3;
      bool ended = false;
      for (std::int64_t polls = 0; !ended && polls < 20'000; polls = 1 + step * polls) {
        CAPTURE(polls);
        seen = {.polls_before_end = polls};
        planning_problem problem{.microbatches = 8};
        problem.go_on = [&] { return seen.go_on(); };
        const auto found = entry.make(hardware, costs, problem, {});
        ended = seen.polls <= polls;  // by itself
        if (found) {
          ++plans;
          REQUIRE(found->evidence);
          CHECK(found->evidence->objective_bound <= objective_of(*found));
          const auto judged = evaluate(hardware, costs, *found);
          REQUIRE(judged);
          CHECK(judged->shortage.empty());
          CHECK(objective_of(judged->plan) == doctest::Approx(objective_of(*found)));
        } else {
          ++refusals;
          CHECK_FALSE(ended);
          CHECK(found.why_not().why == refusal::kind::stopped);
          CHECK_FALSE(found.why_not().reason.empty());
        }
        // What was under way: an evaluation or two.
        CHECK(seen.questions < 100);
        CHECK(seen.polls - polls < 100);
      }
      CHECK(plans > 0);
      CHECK(refusals > 0);
    }
  }
}

TEST_CASE("find_plan answers at once: with what is found so far, or with a first plan") {
  const auto chain = small_model();
  const auto hardware = few_kinds(4);
  const auto costs = [&](int size) { return analytic_cost_model(hardware, chain, {.microbatch_size = size}); };
  for (const auto& entry : planners()) {
    CAPTURE(std::string(entry.name));
    double before = 1e300;
    for (const int allowed : {0, 10, 1000}) {
      CAPTURE(allowed);
      plan_request request{.global_batch = 8, .planner = std::string(entry.name)};
      int polls = 0;
      request.go_on = [&] { return ++polls <= allowed; };
      const auto found = find_plan(hardware, costs, request);
      REQUIRE(found);
      CHECK(sample_count(*found) == 8);
      CHECK(found->planner == entry.name);
      REQUIRE(found->evidence);
      if (allowed == 0) CHECK_FALSE(found->evidence->complete);
      before = std::min(before, objective_of(*found));
      CHECK(objective_of(*found) <= before * (1 + 1e-9));
    }
  }
}
