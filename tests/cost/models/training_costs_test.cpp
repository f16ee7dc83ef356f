// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/training_costs.hpp>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/flash_attention.hpp>

using namespace hetsched;

namespace {

cluster one_node(device d) { return {.subclusters = {{"n", std::move(d), 1, 4, {5e-6, 150e9}, {}}}, .links = {}}; }

const transformer model = gpt({.layers = 2, .hidden = 512, .heads = 8, .vocab = 1000, .sequence = 128});

void check_equal(const any_cost_model& found, const any_cost_model& expected, const cluster& hardware) {
  REQUIRE(found.layer_count() == expected.layer_count());
  for (const auto& mesh : submeshes(hardware.subclusters[0], 0)) {
    const auto ways = found.placements(mesh);
    REQUIRE(ways == expected.placements(mesh));
    for (const auto& where : ways)
      for (int l = 0; l < found.layer_count(); ++l) REQUIRE(found.layer(l, where) == expected.layer(l, where));
  }
}

}  // namespace

TEST_CASE("cost.training_costs: a transformer on devices of the catalogue has the costs of its operators") {
  const auto hardware = one_node(*find_device("A100-SXM4-40GB"));
  using enum recomputation;
  const auto by_hand = make_tile_cost(
      hardware, model,
      {.microbatch_size = 4, .precision = precision::bf16, .recompute = {none, selective, full}, .zero = {0, 1, 2, 3}},
      {.attention = attention_kernels::flash, .causal = true, .sequence_parallel = true}, granularity::sublayer);
  const auto found = training_costs(hardware, model, {.precision = precision::bf16});
  check_equal(found(4), by_hand, hardware);
  CHECK(formulas_for(hardware, true, cost_formulas::automatic) == cost_formulas::tile);
  CHECK(formulas_for(hardware, false, cost_formulas::automatic) == cost_formulas::analytic);
}

TEST_CASE("cost.training_costs: a device that is known by its peaks alone, or a chain of layers, has formulas for whole layers") {
  auto plain = *find_device("A100-SXM4-40GB");
  plain.multiprocessors = 0;
  const auto hardware = one_node(plain);
  const analytic_cost_model by_hand(hardware, with_flash_attention(make_chain(model, granularity::block)),
                                    {.microbatch_size = 2, .recompute = {recomputation::none}, .zero = {1}});
  const training_cost_options options{.cut = granularity::block, .recompute = {recomputation::none}, .zero = {1}};
  check_equal(training_costs(hardware, model, options)(2), by_hand, hardware);
  check_equal(training_costs(hardware, make_chain(model, granularity::block), options)(2), by_hand, hardware);
  CHECK_THROWS_WITH_AS(static_cast<void>(training_costs(hardware, make_chain(model), {.formulas = cost_formulas::tile})),
                       "the tile formulas need a transformer, whose operators are known; found a chain of layers", input_error);
}

TEST_CASE("cost.training_costs: devices beside a device change nothing of its costs") {
  auto plain = *find_device("A100-SXM4-40GB");
  plain.name = "plain";
  plain.multiprocessors = 0;
  const auto known = one_node(*find_device("H100-SXM5-80GB")), unknown = one_node(plain);
  const auto together = [&](const cluster& first, const cluster& second) {
    auto both = first;
    both.subclusters.push_back(second.subclusters.front());
    both.subclusters.back().name = "other";
    both.links.push_back({0, 1, {1e-5, 1e9}});
    return both;
  };
  const training_cost_options options{.precision = precision::bf16};
  for (const auto& [alone, both] : {std::pair{known, together(known, unknown)}, std::pair{unknown, together(unknown, known)}})
    check_equal(training_costs(both, model, options)(2), training_costs(alone, model, options)(2), alone);
  CHECK(formulas_for(together(unknown, known), true, cost_formulas::automatic) == cost_formulas::tile);
  CHECK(formulas_for(unknown, true, cost_formulas::automatic) == cost_formulas::analytic);
}

TEST_CASE("cost.training_costs: a model of 4 bytes a parameter trains in fp32 throughout") {
  const auto hardware = one_node(*find_device("V100-SXM2-32GB"));
  auto single = model;
  single.parameter_bytes = 4;
  const auto half = training_costs(hardware, model, {.zero = {0}})(1), whole = training_costs(hardware, single, {.zero = {0}})(1);
  const placement where{.mesh = {0, 1, 1}};
  const auto a = half.layer(1, where), b = whole.layer(1, where);
  CHECK(a.optimizer_bytes * 8 == b.optimizer_bytes * 12);  // 12 bytes of a master weight and two moments, 8 of two moments
}
