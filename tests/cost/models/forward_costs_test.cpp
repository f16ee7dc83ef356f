// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/forward_costs.hpp>

#include <doctest/doctest.h>

#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>

using namespace hetsched;

TEST_CASE("a request without a cache is a forward, with parameters and one layer's tensors in memory") {
  cluster c;
  for (const char* name : {"a", "b"}) c.subclusters.push_back({.name = name, .device = catalogue_device("T4")});
  c.links.push_back({.a = 0, .b = 1, .link = {.latency_s = 1e-4, .bandwidth = 1e9}});
  layer_chain chain;
  chain.layers.push_back(
      {.name = "first", .forward_flops = 2e12, .backward_flops = 4e12, .parameters = 1000, .boundary_bytes = 500});
  chain.layers.push_back(
      {.name = "second", .forward_flops = 1e12, .backward_flops = 2e12, .parameters = 3000, .boundary_bytes = 20});
  const analytic_cost_model training(c, chain, {.microbatch_size = 4});
  const forward_cost_model costs(training, chain, 4);
  static_assert(additive_cost_model<forward_cost_model<analytic_cost_model>>);
  const placement on_a{.mesh = {0, 1, 1}}, on_b{.mesh = {1, 1, 1}};
  CHECK(costs.placements({0, 1, 1}) == std::vector{on_a});
  CHECK(costs.placements({0, 1, 2}).empty());
  const auto both = costs.stage({0, 2}, on_a);
  CHECK(both.forward_s == training.stage({0, 2}, on_a).forward_s);
  CHECK(both.backward_s == 0);
  CHECK(both.weight_bytes == 2 * 4000);
  CHECK(both.activation_bytes == 0);
  CHECK(both.temporary_bytes == 4 * 520);
  const auto moved = costs.transfer(0, on_a, on_b);
  CHECK(moved.forward_s == doctest::Approx(1e-4 + 4 * 500 / 1e9));
  CHECK(moved.backward_s == 0);
  CHECK(costs.overheads(on_a) == training.overheads(on_a));
  CHECK_THROWS_AS((void)forward_cost_model(training, layer_chain{.layers = {chain.layers[0]}}, 4), input_error);
  CHECK_THROWS_AS((void)forward_cost_model(training, chain, 0), input_error);
}
