// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/model/detail/cluster_operators.hpp>
#include <hetsched/model/graph_operators.hpp>

#include "../sanitizer_share.hpp"
#include "traced_models.hpp"

using namespace hetsched;

namespace {

// A graph of one random operator after another, with random reads, views and products.
operator_graph random_graph(random_source& random, int size) {
  operator_graph graph;
  for (int i = 0; i < size; ++i) {
    graph_node n;
    n.type = "t" + std::to_string(random.integer(0, 2));
    n.output_bytes = random.integer(1, 9);
    if (random.integer(0, 2) == 0) n.op = gemm(random.integer(1, 9), 2, 2, number_format::fp16), n.parameters = 4;
    for (int r = i == 0 ? 0 : random.integer(1, 2); r > 0; --r) n.inputs.push_back(random.integer(std::max(0, i - 6), i - 1));
    n.launches = i == 0 || n.parameters > 0 || random.integer(0, 3) > 0;
    graph.nodes.push_back(n);
  }
  return graph;
}

}  // namespace

TEST_CASE("bytes over a cut are what its right side reads of its left, each result once") {
  random_source random(13);
  for (int instance = 0; instance < 300 / test::sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto graph = random_graph(random, 14);
    const auto bytes = cut_bytes(graph);
    for (int cut = 0; cut <= graph.size(); ++cut) {
      std::map<int, std::set<int>> read;  // nodes before the cut by their storage
      for (int i = cut; i < graph.size(); ++i)
        for (const int j : graph.at(i).inputs)
          if (j < cut) read[storage_of(graph, j)].insert(j);
      bytes_t sum = 0;
      for (const auto& [storage, nodes] : read) {
        bytes_t parts = 0;
        for (const int j : nodes) parts += graph.at(j).output_bytes;
        sum += std::min(parts, graph.at(storage).output_bytes);
      }
      REQUIRE(bytes[static_cast<std::size_t>(cut)] == sum);
    }
  }
}

TEST_CASE("a run is clustered with the fewest bytes over its cuts, then the least largest layer") {
  random_source random(14);
  for (int instance = 0; instance < 300 / test::sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto graph = random_graph(random, 16);
    const auto bytes = cut_bytes(graph);
    const auto units = detail::units_of(graph, bytes, {0, graph.size()});
    const double cap = random.uniform(10, 200);
    // every subset of the cuts between units
    const auto choices = 1u << (units.size() - 1);
    auto best = std::pair(std::numeric_limits<bytes_t>::max(), 0.0);
    const auto judge = [&](const auto& is_cut) {
      std::pair<bytes_t, double> cost{0, 0};
      double flops = 0;
      std::size_t first = 0;
      bool within = true;
      for (std::size_t u = 0; u < units.size(); ++u) {
        flops += units.flops_before[u + 1] - units.flops_before[u];
        if (u + 1 < units.size() && !is_cut(u)) continue;
        within = within && (flops <= cap || u == first);
        cost.first += units.cut_bytes[u];
        cost.second = std::max(cost.second, flops);
        flops = 0, first = u + 1;
      }
      return within ? cost : std::pair(std::numeric_limits<bytes_t>::max(), 0.0);
    };
    for (unsigned cuts = 0; cuts < choices; ++cuts) best = std::min(best, judge([&](std::size_t u) { return cuts >> u & 1; }));
    const auto ends = detail::layer_ends(graph, bytes, {0, graph.size()}, cap);
    REQUIRE(ends.back() == graph.size());
    const auto got = judge([&](std::size_t u) { return std::count(ends.begin(), ends.end(), units.ends[u]) > 0; });
    REQUIRE(got.first == best.first);
    REQUIRE(got.second == doctest::Approx(best.second).epsilon(1e-9));
    // and each cut between two products is the cheapest there
    for (std::size_t u = 0; u + 1 < units.size(); ++u) {
      int left = units.ends[u] - 1, right = units.ends[u];
      while (!has_product(graph.at(left))) --left;
      while (!has_product(graph.at(right))) ++right;
      CHECK(units.cut_bytes[u] == *std::min_element(bytes.begin() + left + 1, bytes.begin() + right + 1));
    }
  }
}

TEST_CASE("GPT-39B: 146 layers of five kinds, whatever the names, and a mask that all blocks read") {
  auto graph = test::traced(gpt({.layers = 48, .hidden = 8192, .heads = 64, .vocab = 51200, .sequence = 1024}));
  const auto layers = make_layers(graph, {.layers = 146});
  CHECK(layers.chain.size() == 146);
  REQUIRE(layers.modules.size() == 1);
  CHECK(layers.modules[0].starts.size() == 48);
  CHECK(std::set(layers.kind.begin(), layers.kind.end()) == std::set{0, 1, 2, 3, 145});
  for (int i = 4; i < 145; ++i) CHECK(layers.kind[static_cast<std::size_t>(i)] == (i - 1) % 3 + 1);
  // each layer is its operators, in order, without a gap
  for (int i = 0, at = 0; i < 146; ++i) {
    CHECK(layers.operators_of[static_cast<std::size_t>(i)].first == at);
    at = layers.operators_of[static_cast<std::size_t>(i)].last;
    if (i == 145) CHECK(at == graph.size());
  }
  CHECK(static_cast<double>(parameter_count(layers.chain)) == doctest::Approx(39e9).epsilon(0.01));

  graph_node mask;
  mask.type = "mask";
  mask.output_bytes = 5;
  auto masked = graph;
  for (auto& n : masked.nodes) {
    n.name.clear();
    for (auto* list : {&n.inputs, &n.kept, &n.owners})
      for (auto& j : *list) ++j;
    if (n.type == "softmax") n.inputs.push_back(0);
  }
  masked.nodes.insert(masked.nodes.begin(), mask);
  const auto same = make_layers(masked, {.layers = 146});
  CHECK(same.kind == layers.kind);
  CHECK(same.chain.layers[7].boundary_bytes == layers.chain.layers[7].boundary_bytes + 5);
}

TEST_CASE("the operators of all layers are the graph's, and add up to the chain") {
  const graph_operators model(test::traced(bert({.layers = 3, .hidden = 64, .heads = 4, .vocab = 100, .sequence = 32})),
                              {.layers = 8});
  static_assert(operator_model<graph_operators>);
  const auto flops = [](const std::vector<operator_use>& uses) {
    return std::accumulate(uses.begin(), uses.end(), 0.0,
                           [](double sum, const auto& u) { return sum + u.times * product_flops(u.op); });
  };
  CHECK(model.chain().size() >= 5);
  for (int i = 0; i < model.chain().size(); ++i) {
    CAPTURE(i);
    const auto& l = model.chain().layers[static_cast<std::size_t>(i)];
    const auto launched = model.operators(i, {.samples = 3});
    CHECK(flops(launched.forward) == 3 * l.forward_flops);
    CHECK(flops(launched.backward) == 3 * l.backward_flops);
    CHECK(flops(launched.weight_backward) == 3 * l.weight_backward_flops);
    CHECK(flops(launched.selective) == 3 * l.selective_flops);
    CHECK(launched == model.operators(model.kind(i), {.samples = 3}));
  }
  CHECK_THROWS_AS((void)model.operators(1, {.tensor = 2}), input_error);
  CHECK_THROWS_AS((void)model.operators(1, {.context = 2}), input_error);
}

TEST_CASE("layers of a graph that shares, looks up and has glue between modules") {
  operator_graph graph;
  const auto f = number_format::fp16;
  const auto product = [&](std::vector<int> inputs, std::vector<int> owners) {
    graph_node n{
        .type = "linear", .op = gemm(4, 8, 8, f), .output_bytes = 64, .inputs = inputs, .kept = inputs, .owners = owners};
    (owners.empty() ? n.parameters : n.shared_parameters) = 64;
    return n;
  };
  const auto other = [&](const char* type, std::vector<int> inputs) {
    return graph_node{.type = type, .op = elementwise(32, 1, 1, f), .output_bytes = 64, .inputs = std::move(inputs)};
  };
  auto table = other("embedding", {});
  table.op = embedding(4, 8, f);
  table.parameters = 800;
  // table | p p | glue | q q (weights of the first p, twice) | loss
  graph.nodes = {
      table, product({0}, {}), product({1}, {1}), other("glue", {2}), product({3}, {1}), product({4}, {1}), other("loss", {5})};
  const auto layers = make_layers(graph, {.products = 1, .layers = 0});
  // The most frequent are the products that share: single ones, three of them.
  REQUIRE(layers.modules == std::vector{repeated_module{1, {2, 4, 5}}});
  CHECK(layers.operators_of == std::vector<layer_range>{{0, 2}, {2, 4}, {4, 5}, {5, 7}});
  CHECK(layers.kind == std::vector{0, 1, 2, 3});
  CHECK(layers.chain.layers[0].parameters == 864);
  CHECK(layers.chain.layers[0].active_fraction == doctest::Approx(64.0 / 864));
  CHECK(layers.chain.layers[1].shared_parameters == 64);
  CHECK(layers.chain.layers[1].owner == 0);
  CHECK(layers.chain.layers[3].boundary_bytes == 0);
  const auto whole = make_layers(graph, {.products = 2, .layers = 0});
  CHECK(whole.modules.empty());
  REQUIRE(whole.chain.size() == 1);
  CHECK(whole.chain.layers[0].shared_parameters == 0);      // at hand
  CHECK(whole.chain.layers[0].activation_bytes == 4 * 64);  // each kept result once
  CHECK_THROWS_AS((void)make_layers(graph, {.layers = -1}), input_error);
  CHECK_THROWS_AS((void)make_layers(graph, {.tolerance = -1}), input_error);
  CHECK_THROWS_AS((void)make_layers(graph, {.products = 0}), input_error);
}

TEST_CASE("layers of a kind launch the same, also what selective recomputation runs again") {
  operator_graph graph;
  const auto add = [&](operator_shape op, std::int64_t parameters, std::vector<int> inputs) {
    graph.nodes.push_back({.type = parameters > 0 ? "linear" : "product",
                           .op = op,
                           .parameters = parameters,
                           .output_bytes = 512,
                           .inputs = inputs,
                           .kept = inputs});
  };
  const auto linear = gemm(16, 16, 16, number_format::fp16), product = batched_gemm(1, 16, 16, 16, number_format::fp16);
  add(linear, 256, {});
  add(linear, 256, {0});
  add(product, 0, {1, 1});
  add(product, 0, {2, 1});  // scores and values: a core
  add(linear, 256, {3});
  add(product, 0, {4, 4});  // a product by itself
  add(linear, 256, {5});
  const graph_operators ops(graph, {.products = 1, .layers = 0});
  for (int i = 0; i < ops.chain().size(); ++i) CHECK(ops.operators(i, {}) == ops.operators(ops.kind(i), {}));
}

TEST_CASE("a copy of weights is held where any owner is another layer, and of that layer's weights only") {
  operator_graph graph;
  for (int i = 0; i < 3; ++i) graph.nodes.push_back({.type = "linear", .op = gemm(1, 8, 8, number_format::fp16)});
  graph.nodes[0].parameters = 100;
  graph.nodes[1].parameters = 7;
  graph.nodes[2].shared_parameters = 107;
  for (const std::vector<int>& owners : {std::vector{0, 1}, std::vector{1, 0}}) {
    graph.nodes[2].owners = owners;
    CHECK(hetsched::detail::layer_sums(graph)({1, 3}).shared_parameters == 100);
    CHECK(hetsched::detail::layer_sums(graph)({0, 3}).shared_parameters == 0);
  }
}

TEST_CASE("long chains of views are cut in no time, and bytes beyond 64 bits refused") {
  operator_graph graph;
  graph.nodes.resize(300'000);
  for (int i = 1; i < graph.size(); ++i)
    graph.nodes[static_cast<std::size_t>(i)] = {.launches = false, .output_bytes = 8, .inputs = {i - 1}};
  graph.nodes[0].output_bytes = 8;
  CHECK(cut_bytes(graph)[150'000] == 8);
  graph.nodes.resize(3);
  for (auto& n : graph.nodes) n = {.output_bytes = std::numeric_limits<bytes_t>::max()};
  graph.nodes[2].inputs = {0, 1};
  CHECK_THROWS_AS((void)cut_bytes(graph), input_error);
}

TEST_CASE("a layer's copy tells the first layer that owns some of it; that of unknown owners is the first of all") {
  operator_graph graph;
  for (int i = 0; i < 4; ++i) {
    graph.nodes.push_back({.type = "linear" + std::to_string(i), .op = gemm(1, 8, 8, number_format::fp16), .parameters = 100});
    if (i > 0) graph.nodes.back().inputs = {i - 1};
  }
  auto& last = graph.nodes.back();
  last.parameters = 0;
  last.shared_parameters = 100;
  const auto owner = [&](const std::vector<int>& nodes) {
    last.owners = nodes;
    const auto chain = make_layers(graph, {.layers = 4, .tolerance = 0}).chain;
    REQUIRE(chain.size() == 4);
    CHECK(chain.layers.back().shared_parameters > 0);
    return chain.layers.back().owner;
  };
  CHECK(owner({2}) == 2);
  CHECK(owner({2, 1}) == 1);
  CHECK(owner({}) == 0);
}
