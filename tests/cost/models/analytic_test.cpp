// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <hetsched/cluster.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model.hpp>

using namespace hetsched;

namespace {

// 100 TFLOP/s, 1 TB/s; 100 GB/s inside a node and 10 GB/s between nodes.
cluster small_cluster() {
  device d{.name = "D", .peak_flops = {2e13, 0, 1e14, 0}, .memory_bytes = 32 * gib, .memory_bandwidth = 1e12};
  return {{{"a", d, 2, 4, {1e-6, 1e11}, {1e-5, 1e10}}, {"b", d, 1, 4, {1e-6, 1e11}, {}}, {"c", d, 1, 1, {}, {}}},
          {{0, 1, {1e-3, 1e9}}}};
}

layer_chain small_chain() {
  const layer l{.name = "l",
                .forward_flops = 1e12,
                .backward_flops = 2e12,
                .parameters = 100'000'000,
                .activation_bytes = 1'000'000'000,
                .selective_saved_bytes = 400'000'000,
                .boundary_bytes = 10'000'000,
                .selective_flops = 1e11,
                .memory_traffic_bytes = 1'000'000'000,
                .tensor_reduce_bytes = 10'000'000,
                .context_gather_bytes = 20'000'000};
  return {{l, l, l}, 2, 8};
}

analytic_options exact(int microbatch_size = 8) {
  return {.microbatch_size = microbatch_size, .efficiency = {{"D", {1, 1, 1, 1}}}, .layer_overhead_s = 0};
}

analytic_cost_model small_model(analytic_options options = exact()) {
  return {small_cluster(), small_chain(), std::move(options)};
}

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-12); }

}  // namespace

TEST_CASE("one device: arithmetic or traffic, whichever takes longer") {
  const placement one{{0, 1, 1}, {}};
  const auto cost = small_model().layer(1, one);
  CHECK(cost.forward_s == near(8e12 / 1e14));
  CHECK(cost.backward_s == near(16e12 / 1e14));
  CHECK(cost.weight_bytes == 1'600'000'000);
  CHECK(cost.activation_bytes == 8'000'000'000);

  auto chain = small_chain();
  chain.layers[0].forward_flops = chain.layers[0].backward_flops = 0;
  chain.layers[1].active_fraction = 0.5;
  chain.layers[1].forward_flops = 0;
  const analytic_cost_model bound(small_cluster(), chain, exact());
  CHECK(bound.layer(0, one).forward_s == near((8e9 + 2e8) / 1e12));
  CHECK(bound.layer(0, one).backward_s == near(2 * (8e9 + 2e8) / 1e12));
  CHECK(bound.layer(1, one).forward_s == near((8e9 + 1e8) / 1e12));

  auto options = exact();
  options.layer_overhead_s = 0.5;
  CHECK(small_model(options).layer(1, one).forward_s == near(0.58));
  CHECK(small_model(options).layer(1, one).weight_backward_s == 0);
  // The weight gradients' share of the arithmetic, nothing of the overhead and of what is computed again.
  chain = small_chain();
  for (auto& l : chain.layers) l.weight_backward_flops = 0.9e12;
  options.recompute = {recomputation::full};
  const analytic_cost_model split(small_cluster(), chain, options);
  auto again = one;
  again.recompute = recomputation::full;
  CHECK(split.layer(1, again).weight_backward_s == near(0.45 * 0.16));
  CHECK(split.stage({0, 2}, again).weight_backward_s == near(2 * 0.45 * 0.16));
  options = exact();
  options.efficiency = {{"E", {1, 1, 1, 1}}};
  CHECK(small_model(options).layer(1, one).forward_s == near(8e12 / 0.5e14));
  options.precision = precision::fp32;
  CHECK(small_model(options).layer(1, one).forward_s == near(8e12 / (0.75 * 2e13)));
  options.precision = precision::tf32;  // which this device lacks
  CHECK(small_model(options).layer(1, one).forward_s == near(8e12 / (0.75 * 2e13)));
}

TEST_CASE("tensor, data and context parallel stages by hand") {
  const auto model = small_model();
  const auto tensor = model.layer(1, {{0, 1, 4}, {1, 1, 4}});
  const double ring4 = 2 * 3 * (1e-6 + 8e7 / 4 / 1e11);
  CHECK(tensor.forward_s == near(0.02 + ring4));
  CHECK(tensor.backward_s == near(0.04 + ring4));
  CHECK(tensor.weight_bytes == 400'000'000);
  CHECK(tensor.activation_bytes == 2'000'000'000);

  const auto data = model.layer(1, {{0, 1, 4}, {4, 1, 1}});
  CHECK(data.forward_s == near(0.02));
  CHECK(data.weight_bytes == 1'600'000'000);
  CHECK(data.activation_bytes == 2'000'000'000);

  const auto both = model.layer(1, {{0, 2, 4}, {2, 1, 4}});
  CHECK(both.forward_s == near(0.01 + 2 * 3 * (1e-6 + 4e7 / 4 / 1e11)));

  const auto context = model.layer(1, {{0, 1, 2}, {1, 2, 1}});
  const double exchange = 1e-6 + 8 * 2e7 / 2 / 1e11;
  CHECK(context.forward_s == near(0.04 + exchange));
  CHECK(context.backward_s == near(0.08 + 2 * exchange));
  CHECK(context.activation_bytes == 4'000'000'000);
  // over two nodes, whose link the four tensor ranks of each share
  const auto wide = model.layer(1, {{0, 2, 4}, {1, 2, 4}});
  CHECK(wide.forward_s == near(0.01 + 2 * 3 * (1e-6 + 4e7 / 4 / 1e11) + (1e-5 + 8 * 2e7 / 4 / 2 / (1e10 / 4))));
}

TEST_CASE("expert parallel stages by hand") {
  auto chain = small_chain();
  chain.experts = 4;
  chain.layers[1].expert_parameters = 80'000'000;
  chain.layers[1].expert_exchange_bytes = 20'000'000;
  auto options = exact();
  options.max_expert = 8;
  const analytic_cost_model model(small_cluster(), chain, options);
  // Two pairs, two samples on each device: to the other and back, half of the tokens each.
  placement where{{0, 1, 4}, {4, 1, 1, 2}};
  const double exchange = 2 * (1e-6 + 2 * 2e7 / 2 / 1e11);
  CHECK(model.layer(1, where).forward_s == near(0.02 + exchange));
  CHECK(model.layer(1, where).backward_s == near(0.04 + exchange));
  CHECK(model.layer(0, where).forward_s == near(0.02));
  CHECK(model.layer(1, where).weight_bytes == 16LL * (20'000'000 + 40'000'000));
  CHECK(model.layer(1, where).activation_bytes == 2'000'000'000);
  // What is not of experts is added up by four devices, experts by the two that have them.
  const double dense = 3 * (1e-6 + 2e7 * 2 / 4 / 1e11), experts = 1e-6 + 4e7 * 2 / 2 / 1e11;
  CHECK(model.update({1, 2}, where) == near(2 * (dense + experts) + 6e7 * 28 / 1e12));
  where.zero = 1;
  CHECK(model.layer(1, where).weight_bytes == 4LL * 60'000'000 + 12LL * (5'000'000 + 20'000'000));
  CHECK(model.update({1, 2}, where) == near(2 * (dense + experts) + 2.5e7 * 28 / 1e12));
  where.zero = 3;
  CHECK(model.layer(1, where).weight_bytes == 16LL * (5'000'000 + 20'000'000));
  CHECK(model.layer(1, where).forward_s == near(0.02 + exchange + dense + experts));
  // Over two nodes, all of whose devices send to the other node at once; tensor ranks send all tokens each.
  const auto wide = model.layer(1, {{0, 2, 4}, {4, 1, 2, 4}});
  const double part = 2 * 2e7 / 4;
  CHECK(wide.forward_s == near(0.01 + 2 * (1e-6 + 2e7 / 2 / 1e11) + 2 * (1e-6 + part / 1e11 + 2 * (1e-5 + part * 4 / 1e10))));
}

TEST_CASE("recomputation is paid in backward") {
  placement four{{0, 1, 4}, {1, 1, 4}};
  const double ring4 = 2 * 3 * (1e-6 + 8e7 / 4 / 1e11);
  const auto model = small_model();
  four.recompute = recomputation::selective;
  CHECK(model.layer(1, four).backward_s == near(0.04 + ring4 + 8e11 / 4 / 1e14));
  CHECK(model.layer(1, four).activation_bytes == 8 * 600'000'000LL / 4);
  four.recompute = recomputation::full;
  CHECK(model.layer(1, four).forward_s == near(0.02 + ring4));
  CHECK(model.layer(1, four).backward_s == near(0.06 + 2 * ring4));
  CHECK(model.layer(1, four).activation_bytes == 80'000'000);
}

TEST_CASE("the update reduces gradients and steps the optimizer") {
  placement where{{0, 2, 4}, {2, 1, 4}};
  // two replicas on two nodes; four such groups share the nodes' link
  const double pass = 1e-5 + 2.5e7 * 2 / 2 / (1e10 / 4);
  const double step = 2.5e7 * (24 + 2 + 2) / 1e12;
  const auto model = small_model();
  CHECK(model.update({1, 2}, where) == near(2 * pass + step));
  CHECK(model.update({0, 2}, {{0, 1, 1}, {}}) == near(2e8 * 28 / 1e12));
  const auto plain = model.layer(1, where);

  where.zero = 1;
  CHECK(model.update({1, 2}, where) == near(2 * pass + step / 2));
  CHECK(model.layer(1, where).total_s() == near(plain.total_s()));
  where.zero = 2;
  CHECK(model.update({1, 2}, where) == near(pass + step / 2));
  CHECK(model.layer(1, where).forward_s == near(plain.forward_s));
  CHECK(model.layer(1, where).backward_s == near(plain.backward_s + pass));
  where.zero = 3;
  CHECK(model.update({1, 2}, where) == near(step / 2));
  CHECK(model.layer(1, where).forward_s == near(plain.forward_s + pass));
  CHECK(model.layer(1, where).backward_s == near(plain.backward_s + 2 * pass));
  CHECK(model.layer(1, where).weight_bytes == 16LL * 25'000'000 / 2);
  // The layer at work has its weights whole.
  CHECK(model.layer(1, where).temporary_bytes == plain.temporary_bytes + 2LL * 25'000'000);
}

TEST_CASE("a tied embedding's copy costs memory and an update at the head, unless the stage has the embedding, too") {
  auto chain = small_chain();
  chain.layers[2].shared_parameters = 50'000'000;
  const analytic_cost_model model(small_cluster(), chain, exact()), plain = small_model();
  const placement one{{0, 1, 1}, {}};
  CHECK(model.layer(2, one).weight_bytes == 16LL * 150'000'000);
  CHECK(model.update({2, 3}, one) == near(1.5e8 * 28 / 1e12));
  CHECK(model.stage({1, 3}, one).weight_bytes == 16LL * 250'000'000);
  CHECK(model.update({1, 3}, one) == near(2.5e8 * 28 / 1e12));
  CHECK(model.stage({0, 3}, one).weight_bytes == plain.stage({0, 3}, one).weight_bytes);
  CHECK(model.stage({0, 3}, one).gradient_bytes == 2LL * 300'000'000);
  CHECK(model.stage({0, 3}, one).optimizer_bytes == 12LL * 300'000'000);
  CHECK(model.update({0, 3}, one) == plain.update({0, 3}, one));
  const placement two[]{one, {{1, 1, 1}, {}}};
  CHECK(model.gradient_sync({0, 3}, two) == plain.gradient_sync({0, 3}, two));
  CHECK(model.gradient_sync({1, 3}, two).bytes == 2LL * 250'000'000);
  CHECK(parameter_count(chain) == 300'000'000);

  CHECK(model.copies(one) == std::vector<parameter_copy>{{.owner = 0,
                                                          .layer = 2,
                                                          .weight_bytes = 16LL * 50'000'000,
                                                          .gradient_bytes = 2LL * 50'000'000,
                                                          .optimizer_bytes = 12LL * 50'000'000,
                                                          .reduction_bytes = 2LL * 50'000'000}});
  CHECK(plain.copies(one).empty());
  // Slices for tensor ranks; ZeRO shards as it does the rest; what is added up is whole.
  const auto cut = model.copies({{0, 1, 4}, {.data = 2, .tensor = 2}, recomputation::none, 1}).front();
  CHECK(cut.weight_bytes == 2LL * 25'000'000 + 2LL * 25'000'000 + 12LL * 12'500'000);
  CHECK(cut.gradient_bytes == 2LL * 25'000'000);
  CHECK(cut.optimizer_bytes == 12LL * 12'500'000);
  CHECK(cut.reduction_bytes == 2LL * 50'000'000);

  chain.layers[2].owner = 1;
  const analytic_cost_model other(small_cluster(), chain, exact());
  CHECK(other.stage({1, 3}, one).weight_bytes == 16LL * 200'000'000);
  CHECK(other.update({1, 3}, one) == near(2e8 * 28 / 1e12));
  // Of unlike tensor ranks, too.
  const stage_part parts[]{{.where = {{0, 1, 1}, {}}, .slices = 6}, {.where = {{1, 1, 1}, {}}, .slices = 2}};
  CHECK(other.sliced_stage({1, 3}, parts).parts[0].weight_bytes == 12LL * 200'000'000);
  CHECK(other.sliced_stage({2, 3}, parts).parts[0].weight_bytes == 12LL * 150'000'000);
}

TEST_CASE("a stage with embedding and head holds what stage_memory says") {
  const auto chain = make_chain(gpt({.layers = 2, .hidden = 256, .heads = 8, .vocab = 999, .sequence = 128}));
  const analytic_cost_model model(small_cluster(), chain, {.zero = {0, 1, 2, 3}});
  for (const auto& where : model.placements({0, 1, 4}))
    for (const layer_range layers : {layer_range{0, 4}, layer_range{1, 4}, layer_range{0, 3}}) {
      const auto held = model.stage(layers, where);
      const auto use = stage_memory(chain, layers, where.degrees, {.zero = where.zero, .overheads = {}});
      CHECK(held.gradient_bytes == use.gradients);
      CHECK(held.optimizer_bytes == use.optimizer);
      CHECK(held.weight_bytes == use.weights + use.gradients + use.optimizer);
    }
}

TEST_CASE("placements are all degrees that fit the mesh, the heads and the microbatch") {
  const auto options = [](int size, int context = 1) {
    auto o = exact(size);
    o.max_context = context;
    return o;
  };
  const auto degrees_of = [](const analytic_cost_model& m, submesh mesh) {
    std::vector<degrees> found;
    for (const auto& p : m.placements(mesh)) {
      CHECK(p.mesh == mesh);
      found.push_back(p.degrees);
    }
    return found;
  };
  using list = std::vector<degrees>;
  CHECK(degrees_of(small_model(options(8)), {0, 1, 4}) == list{{4, 1, 1}, {2, 1, 2}, {1, 1, 4}});
  CHECK(degrees_of(small_model(options(2)), {0, 1, 4}) == list{{2, 1, 2}, {1, 1, 4}});
  CHECK(degrees_of(small_model(options(1)), {0, 2, 4}).empty());
  CHECK(degrees_of(small_model(options(2)), {0, 2, 4}) == list{{2, 1, 4}});
  CHECK(degrees_of(small_model(options(2, 2)), {0, 1, 4}) == list{{2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {1, 1, 4}});
  auto limited = options(8);
  limited.max_data = 2;
  limited.max_tensor = 2;
  CHECK(degrees_of(small_model(limited), {0, 1, 4}) == list{{2, 1, 2}});

  auto six_heads = small_chain();
  six_heads.heads = 6;
  CHECK(degrees_of({small_cluster(), six_heads, options(8)}, {0, 1, 4}) == list{{4, 1, 1}, {2, 1, 2}});

  auto sparse = small_chain();
  sparse.experts = 6;
  auto shared_out = options(8);
  CHECK(degrees_of({small_cluster(), sparse, shared_out}, {0, 1, 4}) == list{{4, 1, 1}, {2, 1, 2}, {1, 1, 4}});
  shared_out.max_expert = 8;
  CHECK(degrees_of({small_cluster(), sparse, shared_out}, {0, 1, 4}) ==
        list{{4, 1, 1}, {4, 1, 1, 2}, {2, 1, 2}, {2, 1, 2, 2}, {1, 1, 4}});
  CHECK(degrees_of({small_cluster(), small_chain(), shared_out}, {0, 1, 4}) == list{{4, 1, 1}, {2, 1, 2}, {1, 1, 4}});

  // A sequence that two devices can share, but not four.
  auto odd = small_chain();
  odd.sequence = 6;
  CHECK(degrees_of({small_cluster(), odd, options(1, 4)}, {0, 1, 2}) == list{{1, 2, 1}, {1, 1, 2}});
  CHECK(degrees_of({small_cluster(), odd, options(1, 4)}, {0, 1, 4}) == list{{1, 1, 4}});
}

TEST_CASE("placements with a choice of recomputation and ZeRO: no doubles of the same thing") {
  auto options = exact();
  options.recompute = {recomputation::full, recomputation::none};
  options.zero = {3, 0, 1};
  const submesh pair{0, 1, 2};
  using list = std::vector<placement>;
  constexpr auto none = recomputation::none, selective = recomputation::selective, full = recomputation::full;
  // Sorted; one replica shares nothing out; two have stage 1 rather than 0, which holds more and takes as long.
  CHECK(small_model(options).placements(pair) == list{{pair, {2, 1, 1}, none, 1},
                                                      {pair, {2, 1, 1}, none, 3},
                                                      {pair, {2, 1, 1}, full, 1},
                                                      {pair, {2, 1, 1}, full, 3},
                                                      {pair, {1, 1, 2}, none, 0},
                                                      {pair, {1, 1, 2}, full, 0}});
  options.zero = {0, 2};
  options.recompute = {none, selective};
  const list both{{pair, {2, 1, 1}, none, 0},      {pair, {2, 1, 1}, none, 2}, {pair, {2, 1, 1}, selective, 0},
                  {pair, {2, 1, 1}, selective, 2}, {pair, {1, 1, 2}, none, 0}, {pair, {1, 1, 2}, selective, 0}};
  CHECK(small_model(options).placements(pair) == both);
  // Where no layer has scores to drop, selective is none.
  auto chain = small_chain();
  for (auto& l : chain.layers) l.selective_saved_bytes = 0;
  options.zero = {0};
  CHECK(analytic_cost_model(small_cluster(), chain, options).placements(pair) ==
        list{{pair, {2, 1, 1}, none, 0}, {pair, {1, 1, 2}, none, 0}});
}

TEST_CASE("overheads: the options', and four boundary tensors of buffers unless they are none") {
  const auto model = small_model();
  auto expected = fitted_overheads;
  expected.buffer_bytes = 4 * 8 * 10'000'000LL;
  CHECK(model.overheads({{0, 1, 1}, {}}) == expected);
  expected.buffer_bytes /= 4;
  CHECK(model.overheads({{0, 1, 4}, {1, 1, 4}}) == expected);
  CHECK(model.overheads({{0, 1, 4}, {4, 1, 1}}) == expected);
  auto options = exact();
  options.overheads = {};
  CHECK(small_model(options).overheads({{0, 1, 1}, {}}) == memory_overheads{});
}

TEST_CASE("gradients of layers that several stages hold are a ring over the slowest link") {
  const auto model = small_model();
  const placement a{{0, 1, 4}, {1, 1, 4}}, b{{1, 1, 4}, {4, 1, 1}}, c{{2, 1, 1}, {}};
  const auto sync = [&](layer_range layers, const std::vector<placement>& holders) {
    return model.gradient_sync(layers, holders);
  };
  CHECK(sync({0, 2}, {a}).seconds == 0);
  CHECK(sync({0, 2}, {a, b}).bytes == 400'000'000);
  CHECK(sync({0, 2}, {a, b}).seconds == near(2 * (4 * 1e-3 + 4e8 / 2 / 1e9)));  // in quarters
  CHECK(sync({0, 2}, {a, a, b}).seconds == near(4 * (4 * 1e-3 + 4e8 / 3 / 1e9)));
  CHECK(sync({0, 2}, {b, b}).seconds == near(2 * (1e-6 + 4e8 / 2 / 4 / 1e11)));  // over ports of four devices
  CHECK(sync({0, 2}, {a, c}).seconds == std::numeric_limits<double>::infinity());
}

TEST_CASE("transfers take the link between the stages") {
  const auto model = small_model();
  const placement a{{0, 1, 4}, {1, 1, 4}}, b{{1, 1, 4}, {4, 1, 1}}, c{{2, 1, 1}, {}};
  // Gathered, sent and scattered: three messages of a quarter each on a device's port, the whole over the link.
  const double seconds = 2 * 3 * (1e-6 + 2e7 / 1e11) + 1e-3 + 8e7 / 1e9;
  CHECK(model.transfer(0, a, b).forward_s == near(seconds));
  CHECK(model.transfer(0, a, b).backward_s == near(seconds));
  CHECK(model.transfer(0, a, b).strategy == "one_to_one");
  CHECK(model.transfer(0, a, b).bytes == 80'000'000);
  CHECK(model.transfer(0, a, b).extra_bytes == 60'000'000);
  CHECK(model.transfer(0, b, a) == model.transfer(0, a, b));
  // Each device sends its quarter, over the port of its node.
  CHECK(model.transfer(0, a, a).forward_s == near(4 * 1e-5 + 8e7 / 1e10));
  CHECK(model.transfer(0, a, a).strategy == "direct");
  // On one node, over ports of their own.
  CHECK(model.transfer(0, b, b).forward_s == near(1e-6 + 8e7 / 4 / 1e11));
  CHECK(model.transfer(0, a, c).forward_s == std::numeric_limits<double>::infinity());
  CHECK(model.transfer(0, a, c).backward_s == std::numeric_limits<double>::infinity());
  CHECK(model.transfer_class(a) != model.transfer_class(b));
  CHECK(model.transfer_class(a) == model.transfer_class({{0, 1, 4}, {1, 2, 2}}));
  CHECK(model.boundary_class(0) == model.boundary_class(1));
}

TEST_CASE("a stage costs the sum of its layers, less what they share") {
  const auto chain = make_chain(gpt({.layers = 4, .hidden = 256, .heads = 8, .sequence = 128}), granularity::sublayer);
  const analytic_cost_model model(small_cluster(), chain, {.microbatch_size = 4, .recompute = {recomputation::selective}});
  for (const auto& mesh : submeshes(small_cluster().subclusters[0], 0))
    for (const auto& where : model.placements(mesh))
      for (int i = 0; i < chain.size(); ++i) {
        stage_cost sum;
        for (int j = i; j < chain.size(); ++j) {
          sum += model.layer(j, where);
          auto once = sum;
          drop_copies(once, {i, j + 1}, model.copies(where));
          CHECK(model.stage({i, j + 1}, where) == once);
        }
      }
}

TEST_CASE("better hardware is never slower") {
  random_source random(7);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    auto hardware = small_cluster();
    const auto chain = make_chain(
        llama({.layers = 1, .hidden = 64 * random.integer(1, 64), .heads = 8, .sequence = 1 << random.integer(4, 12)}));
    analytic_options options{.microbatch_size = 8,
                             .recompute = {static_cast<recomputation>(random.integer(0, 2))},
                             .zero = {random.integer(0, 3)},
                             .max_context = 2};
    const analytic_cost_model before(hardware, chain, options);
    auto& s = hardware.subclusters[0];
    const double factor = random.uniform(1, 4);
    switch (random.integer(0, 3)) {
      case 0:
        s.device.peak_flops[2] *= factor;
        break;
      case 1:
        s.device.memory_bandwidth *= factor;
        break;
      case 2:
        s.intra_node.bandwidth *= factor;
        break;
      default:
        s.inter_node.bandwidth *= factor;
    }
    const analytic_cost_model after(hardware, chain, options);
    for (const auto& mesh : submeshes(s, 0))
      for (const auto& where : before.placements(mesh)) {
        for (int l = 0; l < chain.size(); ++l) {
          CHECK(after.layer(l, where).forward_s <= before.layer(l, where).forward_s);
          CHECK(after.layer(l, where).backward_s <= before.layer(l, where).backward_s);
          CHECK(after.layer(l, where).weight_bytes == before.layer(l, where).weight_bytes);
        }
        CHECK(after.update({0, chain.size()}, where) <= before.update({0, chain.size()}, where));
        CHECK(after.transfer(0, where, where).forward_s <= before.transfer(0, where, where).forward_s);
        CHECK(after.transfer(0, where, where).backward_s <= before.transfer(0, where, where).backward_s);
      }
  }
}

TEST_CASE("a large GPT on A100 runs near the published throughput") {
  // Narayanan et al. 2021, Table 1: 39.1B parameters, tensor 8: 138 TFLOP/s of A100 with recomputation, pipeline bubbles
  // included.
  const auto chain = make_chain(gpt({.layers = 48, .hidden = 8192, .heads = 64, .vocab = 51200, .sequence = 2048}));
  const cluster hardware{{{"a", *find_device("A100-SXM4-80GB"), 1, 8, {5e-6, 300e9}, {}}}, {}};
  const analytic_cost_model model(hardware, chain, {.microbatch_size = 1, .recompute = {recomputation::full}});
  const auto cost = model.stage({0, chain.size()}, {{0, 1, 8}, {1, 1, 8}, recomputation::full});
  const double s = 2048, l = 48, h = 8192, v = 51200;
  const double tflops = 96 * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h)) / cost.total_s() / 8 / 1e12;
  CHECK(tflops > 0.8 * 138);
  CHECK(tflops < 1.25 * 138);
}

TEST_CASE("what makes no sense is refused") {
  const auto refused = [](analytic_options o) { CHECK_THROWS_AS(small_model(std::move(o)), input_error); };
  refused(exact(0));
  auto o = exact();
  o.layer_overhead_s = std::nan("");
  refused(o);
  o = exact();
  o.efficiency[0].of_peak = {0, 0, 0, 0};
  refused(o);
  o.efficiency[0].of_peak = {2, 2, 2, 2};
  refused(o);
  o = exact();
  o.zero = {5};
  refused(o);
  o.zero = {};
  refused(o);
  o = exact();
  o.recompute = {};
  refused(o);
  o = exact();
  o.overheads.margin = -1;
  refused(o);
  o = exact();
  o.max_tensor = 0;
  refused(o);
  auto hardware = small_cluster();
  hardware.subclusters[1].device.peak_flops = {};
  CHECK_THROWS_AS(analytic_cost_model(hardware, small_chain()), input_error);
  auto chain = small_chain();
  chain.layers[1].forward_flops = -1;
  CHECK_THROWS_AS(analytic_cost_model(small_cluster(), chain), input_error);
  chain.layers.clear();
  CHECK_THROWS_AS(analytic_cost_model(small_cluster(), chain), input_error);
}
