// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/training_costs.hpp>

#include <algorithm>
#include <set>

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
  const auto by_hand =
      make_tile_cost(hardware, model,
                     {.microbatch_size = 4,
                      .precision = precision::bf16,
                      .recompute = {none, selective, full},
                      .zero = {0, 1, 2, 3},
                      .memory = training_stack{}.bf16},
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

TEST_CASE("cost.training_costs: experts are shared out by every degree that there is, unless that is limited") {
  auto with_experts = model;
  with_experts.experts = 4;
  with_experts.experts_per_token = 2;
  const auto hardware = one_node(*find_device("A100-SXM4-40GB"));
  const auto degrees_of = [&](const transformer& of, const training_cost_options& options) {
    std::set<int> found;
    for (const auto& where : training_costs(hardware, of, options)(8).placements({0, 1, 4})) found.insert(where.degrees.expert);
    return found;
  };
  CHECK(degrees_of(with_experts, {}) == std::set{1, 2, 4});
  CHECK(degrees_of(with_experts, {.formulas = cost_formulas::analytic}) == std::set{1, 2, 4});
  CHECK(degrees_of(with_experts, {.max_expert = 2}) == std::set{1, 2});
  CHECK(degrees_of(model, {}) == std::set{1});
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

TEST_CASE("what a stack hides of gathers and reductions, recomputes and fuses") {
  const cluster hardware{.subclusters = {{.name = "a",
                                          .device = catalogue_device("A100-SXM4-80GB"),
                                          .nodes = 2,
                                          .devices_per_node = 8,
                                          .intra_node = {3e-6, 3e11},
                                          .inter_node = {5e-6, 2.5e10}}}};
  const auto wide = llama({.layers = 4, .hidden = 4096, .heads = 32, .sequence = 2048});
  const auto block = [&](const training_stack& stack, int zero, recomputation mode = recomputation::none) {
    const auto costs = training_costs(hardware, wide, {.cut = granularity::block, .stack = stack})(16);
    return costs.stage({1, 2}, {.mesh = {0, 2, 8}, .degrees = {.data = 16}, .recompute = mode, .zero = zero});
  };
  const training_stack plain;
  auto hiding = plain;
  hiding.gather_overlap = 1;
  const auto computed = block(plain, 1), gathered = block(plain, 3), hidden = block(hiding, 3);
  const double gather_s = gathered.forward_s - computed.forward_s,
               reduce_s = gathered.backward_s - computed.backward_s - gather_s;
  REQUIRE(gather_s > 0);
  // The longer of both is left in forward; in backward the reduction, and what computing does not cover.
  CHECK(hidden.forward_s == doctest::Approx(std::max(computed.forward_s, gather_s)));
  CHECK(hidden.backward_s == doctest::Approx(std::max(computed.backward_s, gather_s) + reduce_s));
  hiding.gather_overlap = 0.25;
  CHECK(block(hiding, 3).forward_s ==
        doctest::Approx(gathered.forward_s - std::min(0.25 * gather_s, computed.forward_s)).epsilon(1e-9));
  hiding.reduction_overlap = 1;
  CHECK(block(hiding, 2).backward_s == doctest::Approx(std::max(computed.backward_s, reduce_s)));
  CHECK(block(hiding, 1).backward_s == computed.backward_s);
  // At stages 0 and 1 the last backward hides reductions, not the step.
  const auto update = [&](double overlap, double between, int zero) {
    auto machines = hardware;
    machines.subclusters[0].inter_node.bandwidth = between;
    auto stack = plain;
    stack.update_overlap = overlap;
    const auto costs = training_costs(machines, wide, {.cut = granularity::block, .stack = stack})(16);
    return costs.update({1, 2}, {.mesh = {0, 2, 8}, .degrees = {.data = 16}, .zero = zero});
  };
  for (const int zero : {0, 1}) {
    CHECK(update(1, 2.5e10, zero) < update(0, 2.5e10, zero));
    CHECK(update(1, 1e8, zero) == doctest::Approx(update(0, 1e8, zero) - computed.backward_s).epsilon(1e-9));
  }
  CHECK(update(1, 2.5e10, 2) == update(0, 2.5e10, 2));
  // Then stage 1 is not always as fast as 0, and both are offered.
  const auto stages = [&](const training_stack& stack) {
    std::set<int> found;
    for (const auto& where : training_costs(hardware, wide, {.stack = stack})(16).placements({0, 2, 8}))
      if (where.degrees.data > 1) found.insert(where.zero);
    return found;
  };
  auto overlapped = plain;
  overlapped.update_overlap = 1;
  CHECK(stages(plain) == std::set{1, 2, 3});
  CHECK(stages(overlapped) == std::set{0, 1, 2, 3});
  // Of what is kept a half: memory falls, and as much of forward is computed again.
  auto dropping = plain;
  dropping.activations.selective_kept = 0.5;
  const auto halved = block(dropping, 1, recomputation::selective);
  CHECK(2 * halved.activation_bytes == computed.activation_bytes);
  CHECK(halved.backward_s > computed.backward_s + 0.4 * computed.forward_s);
  CHECK(halved.backward_s < computed.backward_s + 0.6 * computed.forward_s);
  CHECK(block(dropping, 1) == computed);
  // Kernels that are not fused take longer, as launches do that the host cannot keep up with.
  auto eager = plain, slow = plain;
  eager.fusion = elementwise_fusion::none;
  slow.host_launch_s = 1e-3;
  CHECK(block(eager, 1).forward_s > 1.05 * computed.forward_s);
  CHECK(block(slow, 1).forward_s > 2 * computed.forward_s);
}

TEST_CASE(
    "gradients of later microbatches are added to those before: bytes at the memory's bandwidth, in the weights' backward") {
  const auto hardware = one_node(catalogue_device("A100-SXM4-80GB"));
  const auto wide = llama({.layers = 2, .hidden = 4096, .heads = 32, .ffn_hidden = 11008, .vocab = 32000, .sequence = 2048});
  training_stack adds;
  adds.name = "adds";
  adds.bf16.accumulation_bytes = 12;
  const auto block = [&](const training_stack& stack, cost_formulas formulas, int batch, const placement& where) {
    return training_costs(
               hardware, wide,
               {.formulas = formulas, .precision = precision::bf16, .cut = granularity::block, .stack = stack, .batch = batch})(4)
        .layer(1, where);
  };
  const double parameters = 4.0 * 4096 * 4096 + 3.0 * 4096 * 11008 + 2 * 4096;
  for (const auto formulas : {cost_formulas::tile, cost_formulas::analytic}) {
    const double sustained = (formulas == cost_formulas::tile ? 0.96 : 1) * hardware.subclusters[0].device.memory_bandwidth;
    const double all_s = 12 * parameters / sustained;
    const auto check_adds = [&](int batch, const placement& where, double expected_s) {
      const auto found = block(adds, formulas, batch, where), plain = block({}, formulas, batch, where);
      CHECK(found.backward_s - plain.backward_s == doctest::Approx(expected_s).epsilon(2e-3));
      CHECK(found.weight_backward_s - plain.weight_backward_s == doctest::Approx(expected_s).epsilon(2e-3));
      CHECK(found.forward_s == plain.forward_s);
      CHECK(found.weight_bytes == plain.weight_bytes);
    };
    const placement one{.mesh = {0, 1, 1}};
    check_adds(0, one, all_s);           // of however many
    check_adds(16, one, all_s * 3 / 4);  // of the four microbatches of 4 samples all but the first
    check_adds(8, one, all_s / 2);
    check_adds(4, one, 0);
    check_adds(16, {.mesh = {0, 1, 2}, .degrees = {.tensor = 2}}, all_s * 3 / 4 / 2);
    const placement replicas{.mesh = {0, 1, 4}, .degrees = {.data = 4}, .recompute = recomputation::full, .zero = 1};
    check_adds(16, replicas, all_s * 3 / 4);
    auto sharded = replicas;
    sharded.zero = 2;  // a quarter of the sums on each
    check_adds(16, sharded, all_s * 3 / 4 / 4);
    // A trainer whose pipelines keep gradients whole: what several stages add takes the place of that, which stays a bound.
    auto keeps = adds;
    keeps.bf16.staged_accumulation_bytes = 10;
    const auto apart = block(keeps, formulas, 16, sharded), together = block(keeps, formulas, 16, replicas);
    CHECK(apart.sums_s == doctest::Approx(all_s * 3 / 4 / 4).epsilon(2e-3));
    for (const auto& c : {apart, together}) CHECK(c.staged_sums_s == doctest::Approx(all_s * 10 / 12 * 3 / 4).epsilon(2e-3));
    CHECK(together.sums_s == together.staged_sums_s);
    CHECK(together.backward_s == doctest::Approx(block({}, formulas, 16, replicas).backward_s + together.sums_s));
  }
  // Where the host keeps up with launches only, it launches a sum for each tensor: four matrices and two norms of a block.
  auto slow = adds, plain = training_stack{};
  slow.host_launch_s = plain.host_launch_s = 0.05;
  const placement one{.mesh = {0, 1, 1}};
  const auto more_s = [&](int batch) {
    return block(slow, cost_formulas::tile, batch, one).backward_s - block(plain, cost_formulas::tile, batch, one).backward_s;
  };
  CHECK(more_s(16) == doctest::Approx(6 * 0.05 * 3 / 4));
  CHECK(more_s(4) == 0);
  // What trainers move: autograd in fp32 and in 16 bits; products that add by themselves move nothing more.
  const auto bytes = [](const char* name) { return find_training_stack(name)->bf16.accumulation_bytes; };
  CHECK(bytes("ddp") == 12);
  CHECK(bytes("deepspeed") == 6);
  CHECK(bytes("torchtitan") == 12);
  CHECK(find_training_stack("torchtitan")->bf16.staged_accumulation_bytes == 10);
  for (const char* name : {"hetsched", "megatron"}) CHECK(bytes(name) == 0);
  CHECK_THROWS_AS(validate(training_stack{.fp16 = {.accumulation_bytes = -1}}), input_error);
  CHECK_THROWS_AS((void)training_costs(hardware, wide, {.batch = -1})(1), input_error);
}

TEST_CASE("a stack with products in fp8: faster where devices have them, two bytes more a weight of blocks") {
  const auto h100 = one_node(catalogue_device("H100-SXM5-80GB")), a100 = one_node(catalogue_device("A100-SXM4-80GB"));
  const auto wide = llama({.layers = 4, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn_hidden = 28672, .sequence = 4096});
  training_stack fp8;
  fp8.name = "fp8";
  fp8.fp8_products = true;
  const auto layer = [&](const cluster& on, const training_stack& stack, int index) {
    const auto costs = training_costs(on, wide, {.precision = precision::bf16, .cut = granularity::block, .stack = stack})(1);
    return costs.layer(index, {.mesh = {0, 1, 1}});
  };
  const auto plain = layer(h100, {}, 1), rounded = layer(h100, fp8, 1);
  // Less than twice as fast, as attention stays and rounding comes on top.
  CHECK(plain.forward_s > 1.3 * rounded.forward_s);
  CHECK(plain.forward_s < 2 * rounded.forward_s);
  CHECK(plain.backward_s > 1.3 * rounded.backward_s);
  CHECK(plain.backward_s < 2 * rounded.backward_s);
  const std::int64_t parameters = 8192LL * (8192 * 2 + 1024 * 2 + 3 * 28672) + 2 * 8192;
  CHECK(rounded.weight_bytes - plain.weight_bytes == 2 * parameters);
  // Of a token 2 bytes each of the MLP's inputs, 8192 and 28672, are 1; attention's input is 1, and its output is 1 more.
  CHECK(plain.activation_bytes - rounded.activation_bytes == 4096LL * (8192 + 28672));
  for (const int end : {0, 5}) CHECK(layer(h100, fp8, end) == layer(h100, {}, end));
  // An A100 multiplies in 16 bits, and rounds for nothing.
  CHECK_FALSE(multiplies_fp8(a100.subclusters[0].device));
  CHECK(multiplies_fp8(h100.subclusters[0].device));
  CHECK(layer(a100, fp8, 1).forward_s > 0.95 * layer(a100, {}, 1).forward_s);
  CHECK_THROWS_WITH_AS(static_cast<void>(training_costs(h100, wide, {.formulas = cost_formulas::analytic, .stack = fp8})),
                       "stack fp8 has products in fp8: only the tile formulas, of a transformer, know which these are",
                       input_error);
}

TEST_CASE("a correction multiplies what operators take, and nothing else") {
  const auto hardware = one_node(*find_device("A100-SXM4-40GB"));
  const auto by = [](double factor) {
    return training_cost_options{
        .correction = [factor](const tile_device&, const operator_shape&, const operator_time&) { return factor; }};
  };
  const auto plain = training_costs(hardware, model)(4), twice = training_costs(hardware, model, by(2))(4);
  const placement where{{0, 1, 1}, {1, 1, 1}};
  for (int l = 0; l < plain.layer_count(); ++l) {
    auto expected = plain.layer(l, where);
    const auto found = twice.layer(l, where);
    CHECK(found.forward_s == doctest::Approx(2 * expected.forward_s));
    CHECK(found.backward_s == doctest::Approx(2 * expected.backward_s));
    CHECK(found.weight_bytes == expected.weight_bytes);
  }
  CHECK_THROWS_WITH_AS((void)training_costs(hardware, model, by(0))(4), doctest::Contains("must be positive"), input_error);
  CHECK_THROWS_WITH_AS((void)training_costs(hardware, make_chain(model), by(2)), doctest::Contains("only the tile formulas"),
                       input_error);
}
