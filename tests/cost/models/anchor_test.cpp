// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/anchor.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer_operators.hpp>

using namespace hetsched;

namespace {

cluster two_kinds() {
  const auto part = [](const char* name, const char* device) {
    return subcluster{.name = name,
                      .device = catalogue_device(device),
                      .nodes = 2,
                      .devices_per_node = 8,
                      .intra_node = {5e-6, 3e11},
                      .inter_node = {1e-5, 5e10}};
  };
  return {.subclusters = {part("a", "A100-SXM4-80GB"), part("h", "H20-96GB")}};
}
const transformer model =
    llama({.layers = 16, .hidden = 2048, .heads = 16, .ffn_hidden = 5632, .vocab = 32000, .sequence = 2048});

/// Tokens per second of each of the anchor's devices, by costs of that cluster.
double tokens_per_s(const cluster& hardware, int subcluster, const device_anchor& a, cost_formulas formulas) {
  const auto costs = training_costs(
      hardware, a.model, {.formulas = formulas, .precision = a.precision, .cut = granularity::block})(a.microbatch_size);
  const int devices = a.degrees.device_count();
  const auto stage = costs.stage({0, costs.layer_count()}, {.mesh = {subcluster, 1, devices}, .degrees = a.degrees});
  return a.microbatch_size * a.model.sequence / (stage.forward_s + stage.backward_s) / devices;
}

std::string complaint(const device_anchor& a) {
  try {
    (void)anchored(two_kinds(), std::vector{a});
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("anchored devices train as fast as was measured, whatever the formulas, and others stay as they are") {
  for (const auto formulas : {cost_formulas::tile, cost_formulas::analytic}) {
    const std::vector<device_anchor> anchors{
        {.device = "A100-SXM4-80GB", .model = model, .degrees = {.tensor = 2}, .microbatch_size = 2, .tokens_per_s = 12'000},
    };
    const auto before = two_kinds(), after = anchored(before, anchors, {.formulas = formulas});
    CHECK(tokens_per_s(after, 0, anchors[0], formulas) == doctest::Approx(12'000).epsilon(1e-6));
    CHECK(after.subclusters[0].device.speed != 1);
    CHECK(after.subclusters[1] == before.subclusters[1]);
    // Exchanges stay: of two devices' time only computing is scaled, so one device alone gains or loses more than both.
    const double alone_before = tokens_per_s(before, 0, {.model = model, .tokens_per_s = 1}, formulas);
    const double alone_after = tokens_per_s(after, 0, {.model = model, .tokens_per_s = 1}, formulas);
    CHECK(alone_after / alone_before == doctest::Approx(after.subclusters[0].device.speed).epsilon(1e-3));
  }
}

TEST_CASE("an anchor of one layer, of recomputing runs, of several nodes, and of iterations with their update") {
  const auto costs_of = [&](const cluster& hardware, const device_anchor& a) {
    return training_costs(hardware, a.model,
                          {.precision = a.precision, .cut = granularity::block, .zero = {a.zero}})(a.microbatch_size);
  };
  device_anchor layer{
      .device = "A100-SXM4-80GB", .model = model, .degrees = {.tensor = 2}, .microbatch_size = 2, .layer_s = 0.02};
  auto found = anchored(two_kinds(), std::vector{layer});
  const placement two{.mesh = {0, 1, 2}, .degrees = {.tensor = 2}};
  for (const int block : {1, 9, 16})
    CHECK(costs_of(found, layer).stage({block, block + 1}, two).total_s() == doctest::Approx(0.02));
  layer.recompute = recomputation::full;
  found = anchored(two_kinds(), std::vector{layer});
  auto again = two;
  again.recompute = recomputation::full;
  CHECK(costs_of(found, layer).stage({3, 4}, again).total_s() == doctest::Approx(0.02));
  CHECK(costs_of(found, layer).stage({3, 4}, two).total_s() < 0.017);  // a forward less
  const device_anchor whole{.device = "A100-SXM4-80GB",
                            .model = model,
                            .degrees = {.data = 16},
                            .nodes = 2,
                            .microbatch_size = 32,
                            .zero = 1,
                            .microbatches = 3,
                            .tokens_per_s = 9'000};
  found = anchored(two_kinds(), std::vector{whole});
  const placement all{.mesh = {0, 2, 8}, .degrees = {.data = 16}, .zero = 1};
  const auto costs = costs_of(found, whole);
  const double iteration_s =
      3 * costs.stage({0, costs.layer_count()}, all).total_s() + costs.update({0, costs.layer_count()}, all);
  CHECK(3 * 32 * 2048 / iteration_s / 16 == doctest::Approx(9'000).epsilon(1e-6));
}

TEST_CASE("an anchor is judged on the first nodes that are large enough, and counts for all of the device") {
  auto hardware = two_kinds();
  hardware.subclusters[1] = hardware.subclusters[0];
  hardware.subclusters[1].name = "b";
  hardware.subclusters[0].devices_per_node = 1;
  const device_anchor a{.device = "A100-SXM4-80GB", .model = model, .degrees = {.tensor = 2}, .tokens_per_s = 12'000};
  const auto found = anchored(hardware, std::vector{a});
  CHECK(found.subclusters[0].device.speed == found.subclusters[1].device.speed);
  CHECK(found.subclusters[0].device.speed != 1);
}

TEST_CASE("of several anchors of a device the geometric mean counts") {
  const auto speed = [&](std::vector<double> tokens) {
    std::vector<device_anchor> anchors;
    for (const double t : tokens) anchors.push_back({.device = "H20-96GB", .model = model, .tokens_per_s = t});
    return anchored(two_kinds(), anchors).subclusters[1].device.speed;
  };
  const double slow = speed({3000}), fast = speed({5000});
  CHECK(speed({3000, 5000}) == doctest::Approx(std::sqrt(slow * fast)));
}

TEST_CASE("anchors that do not agree: each is off by what it differs from the mean") {
  const auto residuals = [&](const std::vector<device_anchor>& anchors) {
    return anchor_residuals(anchored(two_kinds(), anchors), anchors);
  };
  const device_anchor of_model{.device = "H20-96GB", .model = model, .tokens_per_s = 3000},
      of_layer{.device = "H20-96GB", .model = model, .layer_s = 0.02};
  auto faster = of_model, products = of_layer, slower = of_layer;
  faster.tokens_per_s = 1.21 * of_model.tokens_per_s;
  const auto two = residuals({of_model, faster});  // time on one device is in proportion to its speed
  CHECK(two.at(0) == doctest::Approx(1 / 1.1 - 1).epsilon(1e-6));
  CHECK(two.at(1) == doctest::Approx(1.1 - 1).epsilon(1e-6));
  for (const auto& one : {of_model, of_layer}) CHECK(std::abs(residuals({one}).at(0)) < 1e-6);
  products.only = slower.only = operator_class::products;
  slower.layer_s = 1.21 * products.layer_s;
  const auto of_class = residuals({products, slower, of_model});
  CHECK(of_class.at(0) == doctest::Approx(1.1 - 1).epsilon(1e-6));
  CHECK(of_class.at(1) == doctest::Approx(1 / 1.1 - 1).epsilon(1e-6));
  CHECK(std::abs(of_class.at(2)) < 1e-6);  // the others' speed is its own
}

TEST_CASE("classes of operators with anchors of their own are scaled by these, and all else by what the whole layer says") {
  const training_stack stack;
  const device_anchor of_layer{.device = "A100-SXM4-80GB", .model = model, .recompute = recomputation::full, .layer_s = 0.02};
  // What a block's operators of each class take, one by one: forward twice, as it is computed again, and backward.
  const transformer_operators ops(model, {.format = number_format::bf16,
                                          .attention = attention_kernels::flash,
                                          .fusion = stack.fusion,
                                          .causal = true,
                                          .sequence_parallel = true});
  const auto device = make_tile_device(two_kinds().subclusters[0].device);
  std::array<double, 3> modelled_s{};
  const auto block = ops.operators(1, {1, 1, 1});
  for (const auto* list : {&block.forward, &block.forward, &block.backward})
    for (const auto& use : *list)
      modelled_s[static_cast<std::size_t>(class_of(use.op.kind))] += use.times * predict_operator(device, use.op).seconds;
  const auto layer_s = [&](const cluster& hardware) {
    const auto costs = training_costs(hardware, model, {.precision = precision::bf16, .cut = granularity::block})(1);
    return costs.stage({1, 2}, {.mesh = {0, 1, 1}, .recompute = recomputation::full}).total_s();
  };
  REQUIRE(layer_s(two_kinds()) == doctest::Approx(modelled_s[0] + modelled_s[1] + modelled_s[2]));

  auto products = of_layer, attention = of_layer;
  products.only = operator_class::products, products.layer_s = 1.6 * modelled_s[0];
  attention.only = operator_class::attention, attention.layer_s = 0.5 * modelled_s[1];
  auto found = anchored(two_kinds(), std::vector{products, attention});
  const auto& own = found.subclusters[0].device;
  CHECK(own.speed == 1);
  CHECK(own.class_speeds[0] == doctest::Approx(1 / 1.6));
  CHECK(own.class_speeds[1] == doctest::Approx(2));
  CHECK(own.class_speeds[2] == 1);
  CHECK(own.is_anchored());
  CHECK(layer_s(found) == doctest::Approx(1.6 * modelled_s[0] + 0.5 * modelled_s[1] + modelled_s[2]));
  CHECK(found.subclusters[1] == two_kinds().subclusters[1]);
  // An anchor takes the place of what a device was said to be.
  auto said = two_kinds();
  said.subclusters[0].device.speed = 3;
  said.subclusters[0].device.class_speeds = {2, 1, 0.5};
  CHECK(anchored(said, std::vector{products, attention}) == found);
  CHECK(anchored(said, std::vector{of_layer}) == anchored(two_kinds(), std::vector{of_layer}));

  // What the whole layer takes beyond them is of the others.
  auto whole = of_layer;
  whole.layer_s = 1.6 * modelled_s[0] + 0.5 * modelled_s[1] + 3 * modelled_s[2];
  found = anchored(two_kinds(), std::vector{whole, products, attention});
  CHECK(found.subclusters[0].device.class_speeds[2] == doctest::Approx(1.0 / 3));
  CHECK(layer_s(found) == doctest::Approx(whole.layer_s));

  // Two that say the same: their geometric mean, here that of 1.6 and 0.4.
  auto faster = products;
  faster.layer_s /= 4;
  CHECK(anchored(two_kinds(), std::vector{products, faster}).subclusters[0].device.class_speeds[0] == doctest::Approx(1 / 0.8));

  const auto refused = [&](std::vector<device_anchor> all, cost_formulas formulas = cost_formulas::automatic) {
    try {
      (void)anchored(two_kinds(), all, {.formulas = formulas});
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused({products}, cost_formulas::analytic).find("by whole layers") != std::string::npos);
  auto others = products;
  others.only = operator_class::others, others.layer_s = modelled_s[2];
  CHECK(refused({products, attention, others}).empty());
  CHECK(refused({products, attention, others, whole}).find("has one of its own") != std::string::npos);
  products.layer_s *= 1000;
  CHECK(refused({products}).find("a hundred times off") != std::string::npos);
}

TEST_CASE("anchors that make no sense are refused, with the device") {
  const device_anchor good{.device = "H20-96GB", .model = model, .tokens_per_s = 4000};
  CHECK(complaint(good).empty());
  auto a = good;
  a.device = "T4";
  CHECK(complaint(a) == "no subcluster has device T4, which is anchored");
  a = good;
  a.degrees.tensor = 16;
  CHECK(complaint(a) == "the anchor of device H20-96GB needs more devices than the 8 of a node");
  a.degrees = {.data = 1 << 20, .context = 1 << 20, .tensor = 1 << 20};
  CHECK(complaint(a).find("needs more devices") != std::string::npos);
  a = good;
  a.degrees.data = 4;
  a.microbatch_size = 6;
  CHECK(complaint(a).find("do not divide heads, experts, sequence or the 6 samples") != std::string::npos);
  a = good;
  a.degrees.tensor = 3;
  CHECK(complaint(a).find("do not divide") != std::string::npos);
  a = good;
  a.tokens_per_s = -1;
  CHECK(complaint(a).find("tokens_per_s must be finite and positive") != std::string::npos);
  a.tokens_per_s = 4e6;
  CHECK(complaint(a).find("a hundred times off") != std::string::npos);
  a = good;
  a.degrees.data = 0;
  CHECK(complaint(a).find("degrees must be at least 1") != std::string::npos);
  a = good;
  a.layer_s = 1;
  CHECK(complaint(a).find("one time: tokens_per_s, or layer_s") != std::string::npos);
  a.tokens_per_s = 0;
  a.microbatches = 2;
  CHECK(complaint(a).find("microbatches are of an iteration") != std::string::npos);
  a.microbatches = 0;
  a.layer_s = -1;
  CHECK(complaint(a).find("layer_s must be finite and positive") != std::string::npos);
  a = good;
  a.nodes = 2;
  CHECK(complaint(a).find("not as many on each") != std::string::npos);
  a.nodes = 3;
  a.degrees.data = a.microbatch_size = 3;
  CHECK(complaint(a).find("more nodes than there are") != std::string::npos);
  a = good;
  a.zero = 4;
  CHECK_FALSE(complaint(a).empty());
}
