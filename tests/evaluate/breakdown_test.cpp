// SPDX-License-Identifier: Apache-2.0
#include <hetsched/evaluate/breakdown.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <string>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

double sum(const breakdown& b) {
  return b.compute_s + b.collective_s + b.transfer_s + b.bubble_s + b.gradient_reduction_s + b.optimizer_s;
}

}  // namespace

TEST_CASE("free links take no time, and nothing else changes") {
  cluster c = two_kinds();
  c.links = {{0, 1, {1, 2}, {}, 1}};
  const auto free = with_free_links(c);
  CHECK(free.between(0, 1)->transfer_s(1e12) == 0);
  CHECK(free.between(1, 0)->transfer_s(1e12) == 0);
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(free.subclusters[k].intra_node.transfer_s(1e12) == 0);
    CHECK(free.subclusters[k].inter_node.transfer_s(1e12) == 0);
    CHECK(free.subclusters[k].device == c.subclusters[k].device);
  }
}

TEST_CASE("by hand: two stages of 3 s, 8 microbatches, a transfer of 1 s, an update") {
  stub_costs costs{.layers = {{.forward_s = 1, .backward_s = 2}, {.forward_s = 1, .backward_s = 2}}, .boundaries = {1.0}};
  costs.updates = {0.5, 0};
  const auto p = plan_of({line_of({1, 1}, 0, 0, 8, "1f1b")});
  const auto hardware = plain_cluster(1, 2);
  const auto whole = evaluate(hardware, costs, p);
  REQUIRE(whole);
  const auto parts = break_down(hardware, *whole, *whole);
  CHECK(parts.stage == 0);
  CHECK(parts.compute_s == 24);
  CHECK(parts.collective_s == 0);
  CHECK(parts.optimizer_s == 0.5);
  CHECK(parts.gradient_reduction_s == 0);
  CHECK(parts.bubble_s == doctest::Approx(3));  // of the first stage, waiting for the second
  CHECK(parts.transfer_s == doctest::Approx(whole->plan.predicted.iteration_s - 27.5));
  CHECK(parts.transfer_s > 0);
  CHECK(sum(parts) == doctest::Approx(whole->plan.predicted.iteration_s).epsilon(1e-12));
}

TEST_CASE("by hand: transfers of 4 s that follow each other every second") {
  transfer_cost crossing(4);
  crossing.forward_occupied_s = crossing.backward_occupied_s = 1;
  const stub_costs costs{.layers = {{.forward_s = 1, .backward_s = 2}, {.forward_s = 1, .backward_s = 2}},
                         .boundaries = {crossing}};
  const auto hardware = plain_cluster(1, 2);
  const auto whole = evaluate(hardware, costs, plan_of({line_of({1, 1}, 0, 0, 8, "exact_1f1b")}));
  REQUIRE(whole);
  CHECK(whole->plan.pipelines[0].boundaries[0].forward_occupied_s == 1);
  CHECK(warmups(whole->plan.pipelines[0]) == std::vector{5, 1});  // 3 + 8 + 3 s there and back, a microbatch every 3 s
  CHECK(whole->plan.predicted.period_s == 3);
  CHECK(whole->plan.predicted.iteration_s == 3 + 8 + 8 * 3);
  CHECK(whole->plan.predicted.lower_bound_s == 3 + 8 + 8 * 3);
  const auto parts = break_down(hardware, *whole, *whole);
  CHECK(parts.transfer_s == doctest::Approx(8));
  CHECK(sum(parts) == doctest::Approx(whole->plan.predicted.iteration_s).epsilon(1e-12));
}

TEST_CASE("the parts add up to the iteration: plans of the planner, one pipeline and two, with collectives and reductions") {
  cluster hardware;
  for (const char* device : {"V100-SXM2-32GB", "A100-SXM4-40GB"})
    hardware.subclusters.push_back({device, catalogue_device(device), 1, 4, {5e-6, 100e9}, {}});
  hardware.links = {{0, 1, {50e-6, gbit_per_s(10)}}};
  const auto chain = make_chain(gpt({.layers = 12, .hidden = 1024, .heads = 16}));
  const analytic_options options{.microbatch_size = 4, .zero = {0, 1, 2}};
  const analytic_cost_model costs(hardware, chain, options), free(with_free_links(hardware), chain, options);
  for (const int microbatches : {1, 4, 32}) {
    CAPTURE(microbatches);
    auto planned = interop_dp(hardware, costs, {.microbatches = microbatches, .microbatch_size = 4, .use_all_devices = true});
    REQUIRE(planned);
    // Two equal halves of the A100s, too.
    plan halves;
    for (const int first : {0, 2})
      halves.pipelines.push_back(
          {.microbatches = microbatches,
           .microbatch_size = 4,
           .stages = {{.layers = {0, chain.size()}, .devices = {{{1, 1, 2}, first}}, .degrees = {2, 1, 1}}},
           .schedule = {.name = "1f1b"}});
    for (const auto& p : {*planned, halves}) {
      const auto whole = evaluate(hardware, costs, p), alone = evaluate(with_free_links(hardware), free, p);
      REQUIRE(whole);
      REQUIRE(alone);
      const auto parts = break_down(hardware, *whole, *alone);
      CHECK(sum(parts) == doctest::Approx(whole->plan.predicted.iteration_s).epsilon(1e-9));
      for (const double part : {parts.compute_s, parts.optimizer_s}) CHECK(part > 0);
      for (const double part : {parts.collective_s, parts.transfer_s, parts.bubble_s, parts.gradient_reduction_s})
        CHECK(part >= 0);
      if (p.pipelines.size() == 2) {
        CHECK(parts.gradient_reduction_s >= whole->plan.gradient_sync.at(0).seconds);
        CHECK(parts.transfer_s == 0);
      }
    }
  }
}
