// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster.hpp>
#include <hetsched/cost/models/replica_profile.hpp>

using namespace hetsched;

namespace {

// v: 2 nodes of 4; w: the same device, 1 node of 2; a: 1 node of 4; e: 4 nodes of 3.
cluster machines() {
  const auto v100 = *find_device("V100-SXM2-32GB");
  const auto a100 = *find_device("A100-SXM4-40GB");
  return {{{"v", v100, 2, 4, {1e-6, 1e11}, {1e-5, 1e10}},
           {"w", v100, 1, 2, {1e-6, 1e11}, {}},
           {"a", a100, 1, 4, {1e-6, 1e11}, {}},
           {"e", *find_device("T4"), 4, 3, {1e-6, 1e11}, {1e-5, 1e10}}},
          {{0, 2, {1e-3, 1e9}}}};
}

replica_row row(std::string subcluster, int tensor, int size, double scale, int nodes = 1) {
  replica_row r;
  r.subcluster = std::move(subcluster);
  r.nodes = nodes;
  r.tensor = tensor;
  r.microbatch_size = size;
  r.forward_s = {scale, 2 * scale};
  r.backward_s = {3 * scale, 4 * scale};
  r.weight_bytes = {1000, 2000};
  r.activation_bytes = {10 * size, 20 * size};
  return r;
}

replica_profile two_layers(std::vector<replica_row> rows) { return {{{"first", 1'000'000}, {"second", 0}}, std::move(rows)}; }

replica_cost_model made(std::vector<replica_row> rows, int size, bool extrapolate = false) {
  return {machines(), two_layers(std::move(rows)), {.microbatch_size = size, .extrapolate = extrapolate}};
}

std::vector<degrees> offered(const replica_cost_model& m, submesh mesh) {
  std::vector<degrees> found;
  for (const auto& p : m.placements(mesh)) {
    CHECK(p == placement{mesh, p.degrees});
    found.push_back(p.degrees);
  }
  return found;
}

std::string message(const replica_profile& p, int size = 1) {
  try {
    const replica_cost_model model(machines(), p, {.microbatch_size = size});
    return "";
  } catch (const input_error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("the planner chooses how many replicas share a stage, and each computes its part of the microbatch") {
  const std::vector rows{row("v", 1, 1, 1.0), row("v", 1, 2, 1.5), row("v", 2, 2, 0.75), row("v", 2, 4, 1.25)};
  const auto four = made(rows, 4);
  CHECK(four.layer_count() == 2);
  CHECK(offered(four, {0, 1, 1}).empty());  // 4 samples on one device were not measured
  CHECK(offered(four, {0, 1, 2}) == std::vector<degrees>{{2, 1, 1}, {1, 1, 2}});
  CHECK(offered(four, {0, 1, 4}) == std::vector<degrees>{{4, 1, 1}, {2, 1, 2}});
  CHECK(offered(four, {0, 2, 4})
            .empty());  // 8 replicas do not divide 4 samples; 4 of two devices compute 1, below what was measured
  CHECK(four.layer(0, {{0, 1, 2}, {2, 1, 1}}) == stage_cost{1.5, 4.5, 1000, 20});
  CHECK(four.layer(1, {{0, 1, 4}, {4, 1, 1}}) == stage_cost{2, 4, 2000, 20});
  CHECK(four.layer(1, {{0, 1, 4}, {2, 1, 2}}) == stage_cost{1.5, 3, 2000, 40});
  CHECK(four.layer(1, {{0, 1, 2}, {1, 1, 2}}) == stage_cost{2.5, 5, 2000, 80});
  CHECK(four.stage({0, 2}, {{0, 1, 2}, {1, 1, 2}}) == stage_cost{3.75, 8.75, 3000, 120});
  CHECK(four.stage({1, 1}, {{0, 1, 2}, {1, 1, 2}}) == stage_cost{});
  const auto eight = made(rows, 8);
  CHECK(offered(eight, {0, 2, 4}) == std::vector<degrees>{{8, 1, 1}, {4, 1, 2}});
  CHECK(offered(made(rows, 6), {0, 1, 4}) == std::vector<degrees>{{2, 1, 2}});  // 4 does not divide 6

  CHECK_THROWS_AS((void)four.layer(0, {{0, 1, 1}, {1, 1, 1}}), input_error);
  CHECK_THROWS_AS((void)four.layer(0, {{0, 1, 2}, {1, 2, 1}}), input_error);
  CHECK_THROWS_AS((void)four.update({0, 2}, {{0, 2, 4}, {8, 1, 1}}), input_error);
  CHECK_THROWS_AS((void)four.stage({0, 2}, {{0, 1, 2}, {2, 1, 1}, recomputation::full}), input_error);
  CHECK_THROWS_AS((void)four.stage({0, 2}, {{0, 1, 2}, {2, 1, 1}, recomputation::none, 1}), input_error);
  CHECK_THROWS_AS((void)four.stage({0, 2}, {{0, 1, 2}, {1, 1, 1}}), input_error);  // another number of devices
}

TEST_CASE("between two measured sizes everything lies on a line, bytes rounded up") {
  auto small = row("v", 1, 2, 1.0), large = row("v", 1, 5, 4.0);
  small.weight_bytes = {1000, 2001};
  large.weight_bytes = {1000, 2000};
  small.activation_bytes = {10, 20};
  large.activation_bytes = {11, 50};
  small.gradient_bytes = {400, 900};
  large.gradient_bytes = {402, 900};
  small.update_s = {0.5, 0.25};
  large.update_s = {0.75, 0.25};
  const placement one{{0, 1, 1}, {1, 1, 1}};
  const auto three = made({large, small}, 3);
  // A third of the way: 1 + 3/3; 2 + 6/3; 10 1/3; 2000 2/3; 400 2/3.
  CHECK(three.layer(0, one) == stage_cost{2, 6, 1000, 11, 0, 401});
  CHECK(three.layer(1, one) == stage_cost{4, 8, 2001, 30, 0, 900});
  CHECK(three.update({0, 2}, one) == doctest::Approx(0.5 + 0.25 / 3 + 0.25));
  CHECK(three.sizes(one) == replica_sizes{3, 2, 5});
  CHECK(!three.sizes(one).extrapolated());
  CHECK(made({large, small}, 5).sizes(one) == replica_sizes{5, 5, 5});
  CHECK(made({large, small}, 2).layer(1, one) == stage_cost{2, 4, 2001, 20, 0, 900});
  CHECK(offered(made({large, small}, 1), {0, 1, 1}).empty());
  CHECK(offered(made({large, small}, 6), {0, 1, 1}).empty());
  CHECK(offered(made({large, small}, 6), {0, 1, 2}) == std::vector<degrees>{{2, 1, 1}});
  CHECK(three.measured_sizes() == std::vector{2, 5});
}

TEST_CASE("beyond the measured sizes: on request, by the two nearest, never below 0") {
  const std::vector rows{row("v", 1, 2, 1.0), row("v", 1, 4, 2.0), row("v", 1, 8, 6.0)};
  const placement one{{0, 1, 1}, {1, 1, 1}};
  const auto sixteen = made(rows, 16, true);
  CHECK(sixteen.layer(0, one) == stage_cost{14, 42, 1000, 160});  // 2 -> 6 from 4 to 8
  CHECK(sixteen.sizes(one) == replica_sizes{16, 4, 8});
  CHECK(sixteen.sizes(one).extrapolated());
  const auto single = made(rows, 1, true);
  CHECK(single.layer(0, one) == stage_cost{0.5, 1.5, 1000, 10});
  CHECK(single.sizes(one) == replica_sizes{1, 2, 4});
  CHECK(offered(made(rows, 4, true), {0, 1, 4}) == std::vector<degrees>{{4, 1, 1}});

  auto steep = row("v", 1, 4, 4.0);
  steep.weight_bytes = {3000, 1000};
  steep.activation_bytes = {100, 20};
  const auto clipped = made({row("v", 1, 2, 1.0), steep}, 1, true);
  CHECK(clipped.layer(0, one) == stage_cost{0, 0, 0, 0});
  CHECK(clipped.layer(1, one) == stage_cost{0, 0, 2500, 50});

  // One size alone: times and activations in proportion, state as it is.
  auto alone = row("v", 1, 4, 1.0);
  alone.activation_bytes = {10, 21};
  alone.gradient_bytes = {500, 100};
  alone.update_s = {0.5, 0.5};
  const auto half = made({alone}, 2, true);
  CHECK(half.layer(0, one) == stage_cost{0.5, 1.5, 1000, 5, 0, 500});
  CHECK(half.layer(1, one) == stage_cost{1, 2, 2000, 11, 0, 100});
  CHECK(half.update({0, 2}, one) == 1);
  CHECK(half.sizes(one) == replica_sizes{2, 4, 4});
  CHECK(half.sizes(one).extrapolated());
  CHECK(made({alone}, 12, true).layer(0, one) == stage_cost{3, 9, 1000, 30, 0, 500});
}

TEST_CASE("replicas on one node, and replicas across nodes") {
  // Two devices cannot divide three: only across two nodes.
  const std::vector across{row("e", 2, 1, 1.0, 2)};
  CHECK(offered(made(across, 3), {3, 2, 3}) == std::vector<degrees>{{3, 1, 2}});
  CHECK(offered(made(across, 3), {3, 3, 3}).empty());  // 2 nodes do not divide 3
  CHECK(offered(made(across, 6), {3, 4, 3}) == std::vector<degrees>{{6, 1, 2}});
  CHECK(offered(made(across, 1), {3, 1, 2}).empty());
  CHECK(offered(made({row("e", 2, 1, 1.0)}, 3), {3, 2, 3}).empty());

  // Where both serve, the fewest nodes count, whatever their order, and also where only the others have the size.
  for (const bool swapped : {false, true}) {
    std::vector both{row("v", 4, 1, 1.0), row("v", 4, 1, 9.0, 2), row("v", 4, 2, 9.0, 2)};
    if (swapped) std::swap(both[0], both[1]);
    CHECK(made(both, 2).layer(0, {{0, 2, 4}, {2, 1, 4}}).forward_s == 1);
    CHECK(offered(made(both, 4), {0, 2, 4}).empty());
  }
  // A replica as large as two nodes.
  CHECK(offered(made({row("v", 8, 1, 1.0, 2)}, 1), {0, 2, 4}) == std::vector<degrees>{{1, 1, 8}});
  auto wide = row("v", 2, 1, 1.0, 2);
  wide.context = 4;
  CHECK(offered(made({wide}, 1), {0, 2, 4}) == std::vector<degrees>{{1, 4, 2}});
}

TEST_CASE("an update is what was measured, and a ring over the replicas") {
  auto r = row("v", 2, 1, 1.0);
  const placement two{{0, 1, 4}, {2, 1, 2}}, all{{0, 2, 4}, {4, 1, 2}};
  CHECK(made({r}, 2).update({0, 2}, two) == 0);
  CHECK(made({r}, 2).lacks_gradients(two));
  r.update_s = {0.5, 0.25};
  CHECK(made({r}, 2).update({0, 2}, two) == 0.75);
  r.weight_bytes = {16'000'000, 32'000'000};
  r.gradient_bytes = {4'000'000, 8'000'000};
  const auto model = made({r}, 2);
  CHECK(!model.lacks_gradients(two));
  CHECK(model.layer(1, two).gradient_bytes == 8'000'000);
  // 2 replicas in a node: 2 steps of half the gradients.
  CHECK(model.update({0, 2}, two) == doctest::Approx(0.75 + 2 * (1e-6 + 6e6 / 1e11)));
  CHECK(model.update({1, 2}, two) == doctest::Approx(0.25 + 2 * (1e-6 + 4e6 / 1e11)));
  // 4 over two nodes: 6 steps of a quarter; the rings of both tensor ranks share the nodes' links.
  CHECK(made({r}, 4).update({0, 2}, all) == doctest::Approx(0.75 + 6 * (1e-5 + 3e6 / (1e10 / 2))));

  // Replicas across two nodes: one device of each per node, so that all replicas of a node meet there.
  auto e = row("e", 2, 1, 1.0, 2);
  e.gradient_bytes = {300, 600};
  CHECK(made({e}, 3).update({0, 2}, {{3, 2, 3}, {3, 1, 2}}) == doctest::Approx(4 * (1e-6 + 300 / 1e11)));
  // On four nodes they leave it, one ring per node.
  CHECK(made({e}, 6).update({0, 2}, {{3, 4, 3}, {6, 1, 2}}) == doctest::Approx(10 * (1e-5 + 150 / 1e10)));

  // Between pipelines: all gradients of a replica, on the slowest link between any two.
  auto a = row("a", 4, 1, 1.0);
  a.gradient_bytes = {1000, 1000};
  const auto mixed = made({r, a}, 1);
  const placement holders[] = {{{0, 1, 2}, {1, 1, 2}}, {{2, 1, 4}, {1, 1, 4}}};
  const auto sum = mixed.gradient_sync({0, 2}, holders);
  CHECK(sum.bytes == 24'000'000);
  CHECK(sum.seconds == doctest::Approx(2 * (4 * 1e-3 + 12e6 / 1e9)));
  CHECK(mixed.gradient_sync({0, 2}, std::span(holders).first(1)).seconds == 0);
}

TEST_CASE("transfers: the bytes of all samples, over the links that replicas have") {
  const auto model = made({row("v", 1, 1, 1.0), row("a", 1, 1, 1.0)}, 4);
  const placement v{{0, 1, 4}, {4, 1, 1}}, v2{{0, 2, 2}, {4, 1, 1}}, a{{2, 1, 4}, {4, 1, 1}}, w{{1, 1, 2}, {}};
  for (const auto& [from, to] : {std::pair(v, a), std::pair(v2, a), std::pair(v, v2)})
    for (const auto near : {proximity::other_node, proximity::same_node}) {
      CHECK(model.transfer(0, from, to, near) == boundary_cost(machines(), from, to, near, 4'000'000));
    }
  CHECK(model.transfer(0, v, a).forward_s < 1e-3 + 4e6 / 1e9 + 1e-3);
  CHECK(model.transfer(0, v, a).forward_s > 1e-3 + 4e6 / 1e9);
  CHECK(model.transfer(0, a, a).forward_s == doctest::Approx(1e-6 + 1e6 / 1e11));  // four pairs of devices
  CHECK(model.transfer(0, v, w).forward_s == std::numeric_limits<double>::infinity());
  CHECK(model.transfer(1, v, a).bytes == 0);
  CHECK(model.transfer_class(v) == boundary_side_class(v));
  CHECK(model.boundary_class(0) != model.boundary_class(1));
}

TEST_CASE("a device's rows serve all its subclusters, together with the subcluster's own") {
  auto any = row("", 1, 1, 1.0);
  any.device = "V100-SXM2-32GB";
  auto other = any;
  other.device = "H20-96GB";
  other.microbatch_size = 64;
  auto large = any;
  large.tensor = 4;  // w has no such nodes
  const auto model = made({any, other, large, row("v", 1, 2, 5.0)}, 2);
  CHECK(offered(model, {0, 1, 1}) == std::vector<degrees>{{1, 1, 1}});
  CHECK(offered(model, {1, 1, 1}).empty());
  CHECK(offered(model, {1, 1, 2}) == std::vector<degrees>{{2, 1, 1}});
  CHECK(offered(model, {2, 1, 2}).empty());
  CHECK(model.measured_sizes() == std::vector{1, 2});
  CHECK(message(two_layers({any, row("v", 1, 1, 5.0)})) ==
        "/costs/1: same degrees, nodes and microbatch_size on subcluster v as /costs/0");
  any.device = "Tesla V100-SXM2-32GB";  // as the driver prints it
  CHECK(offered(made({any, other, large, row("v", 1, 2, 5.0)}, 2), {0, 1, 1}) == std::vector<degrees>{{1, 1, 1}});
}

TEST_CASE("what makes no sense is refused with its place") {
  const auto spoiled = [](auto spoil) {
    auto p = two_layers({row("v", 1, 1, 1.0), row("v", 2, 1, 1.0), row("v", 2, 2, 1.0)});
    spoil(p, p.rows[1]);
    return message(p);
  };
  CHECK(spoiled([](auto&, auto&) {}) == "");
  CHECK(spoiled([](auto&, auto& r) { r.tensor = 64; }) == "");  // the cluster has no such shape
  CHECK(spoiled([](auto&, auto& r) { r.nodes = 2; }) == "");
  CHECK(spoiled([](auto&, auto& r) { r.subcluster = "x"; }) == "/costs/1/subcluster: the cluster has no subcluster x");
  CHECK(spoiled([](auto&, auto& r) { r.device = "T4"; }) == "/costs/1: needs either a subcluster or a device");
  CHECK(spoiled([](auto&, auto& r) { r.subcluster = ""; }).starts_with("/costs/1: "));
  CHECK(spoiled([](auto&, auto& r) { r.nodes = 0; }) == "/costs/1/nodes: must be at least 1");
  CHECK(spoiled([](auto&, auto& r) { r.nodes = 4; }) == "/costs/1/nodes: must divide the 2 devices of tensor x context");
  CHECK(spoiled([](auto&, auto& r) { r.tensor = -1; }) == "/costs/1/tensor: must be at least 1");
  CHECK(spoiled([](auto&, auto& r) { r.context = 0; }) == "/costs/1/context: must be at least 1");
  CHECK(spoiled([](auto&, auto& r) { r.microbatch_size = 0; }) == "/costs/1/microbatch_size: must be at least 1");
  CHECK(spoiled([](auto&, auto& r) { r.tensor = r.context = 1 << 30; }) == "/costs/1/tensor: has too many devices");
  CHECK(spoiled([](auto&, auto& r) { r.microbatch_size = 2; }) ==
        "/costs/2: same degrees, nodes and microbatch_size on subcluster v as /costs/1");
  CHECK(spoiled([](auto&, auto& r) { r.forward_s.pop_back(); }) ==
        "/costs/1/forward_s: has 1 numbers, expected one for each of the 2 layers");
  CHECK(spoiled([](auto&, auto& r) { r.backward_s[1] = -1; }).starts_with("/costs/1/backward_s/1: "));
  CHECK(spoiled([](auto&, auto& r) { r.forward_s[0] = std::nan(""); }).starts_with("/costs/1/forward_s/0: "));
  CHECK(spoiled([](auto&, auto& r) { r.weight_bytes.push_back(1); }).starts_with("/costs/1/weight_bytes: "));
  CHECK(spoiled([](auto&, auto& r) { r.activation_bytes[0] = -1; }).starts_with("/costs/1/activation_bytes/0: "));
  CHECK(spoiled([](auto&, auto& r) { r.gradient_bytes = {1}; }).starts_with("/costs/1/gradient_bytes: has 1 numbers"));
  CHECK(spoiled([](auto&, auto& r) {
          r.gradient_bytes = {1001, 0};
        }) == "/costs/1/gradient_bytes/0: is more than weight_bytes, of which it is a part");
  CHECK(spoiled([](auto&, auto& r) {
          r.update_s = {1, std::numeric_limits<double>::infinity()};
        }).starts_with("/costs/1/update_s/1: "));
  CHECK(spoiled([](auto&, auto& r) {
          r.update_s = {1, 1};
        }) == "/costs/2/update_s: is not told, but by /costs/1 for the same replica");
  CHECK(spoiled([](auto& p, auto&) {
          p.rows[2].gradient_bytes = {1, 1};
        }) == "/costs/2/gradient_bytes: is told, but not by /costs/1 for the same replica");
  CHECK(spoiled([](auto& p, auto&) { p.layers[1].boundary_bytes_per_sample = -1; }) ==
        "/layers/1/boundary_bytes_per_sample: is negative");
  CHECK(spoiled([](auto& p, auto&) { p.layers.clear(), p.rows.clear(); }).starts_with("/layers: "));
  CHECK(message(two_layers({}), 0) == "microbatch_size must be at least 1");
  CHECK(message(two_layers({})) == "");

  // Bytes that outgrow 64 bits are an error, not another number.
  auto huge = row("v", 1, 1, 1.0);
  huge.activation_bytes = {bytes_t{1} << 60, 0};
  CHECK_THROWS_AS((void)made({huge}, 64, true).layer(0, {{0, 1, 1}, {1, 1, 1}}), input_error);
}

TEST_CASE("what measured layers share is held, added up and updated once by a stage that has both") {
  auto told = row("v", 2, 4, 1.0);
  told.gradient_bytes = {100, 200};
  told.update_s = {0.5, 0.25};
  auto shared = two_layers({told, row("a", 1, 4, 1.0)});
  shared.layers[1].copy_of = {.layer = 0, .fraction = 0.5};
  const replica_cost_model model(machines(), shared, {.microbatch_size = 4});
  const placement where{{0, 1, 2}, {1, 1, 2}};
  CHECK(model.stage({0, 2}, where).weight_bytes == 2000);
  CHECK(model.stage({0, 2}, where).gradient_bytes == 200);
  CHECK(model.stage({1, 2}, where) == model.layer(1, where));
  CHECK(model.update({0, 2}, where) == doctest::Approx(0.625));
  CHECK(model.update({1, 2}, where) == doctest::Approx(0.25));
  CHECK(model.gradient_sync({0, 2}, std::vector{where, where}).bytes == 400);
  CHECK(model.gradient_sync({1, 2}, std::vector{where, where}).bytes == 400);
  // Of both tensor ranks together.
  CHECK(
      model.copies(where) ==
      std::vector<parameter_copy>{{.owner = 0, .layer = 1, .weight_bytes = 1000, .gradient_bytes = 100, .reduction_bytes = 200}});
  // Gradients that are not told are free to add up, and what has no costs has no bytes.
  CHECK(model.copies({{2, 1, 1}, {}}) == std::vector<parameter_copy>{{.owner = 0, .layer = 1, .weight_bytes = 1000}});
  CHECK(model.copies({{2, 1, 2}, {1, 1, 2}}) == std::vector<parameter_copy>{{.owner = 0, .layer = 1}});
  shared.layers[0].copy_of = {.layer = 0, .fraction = 0.5};
  CHECK(message(shared) == "/layers/0/copy_of/layer: must be another layer of the profile");
}

TEST_CASE("a copied part is rounded down, and owned by stages with its owner") {
  const copied_part part{.layer = 2, .fraction = 0.3};
  CHECK(part.of(10) == 3);
  CHECK(part.of(9) == 2);
  CHECK(part.is_owned_by({2, 3}));
  CHECK_FALSE(part.is_owned_by({0, 2}));
  CHECK_FALSE(part.is_owned_by({3, 9}));
}
