// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/model/graph_operators.hpp>

using namespace hetsched;

namespace {

constexpr auto half = number_format::fp16;

// x -> linear -> gelu -> scores of it with itself -> view -> loss
operator_graph small() {
  operator_graph graph;
  graph.nodes = {
      {.name = "a", .type = "linear", .op = gemm(8, 16, 4, half), .parameters = 64, .output_bytes = 256, .saved_bytes = 64},
      {.name = "b", .type = "gelu", .op = elementwise(128, 1, 1, half), .output_bytes = 256, .inputs = {0}, .kept = {0}},
      {.name = "c", .type = "scores", .op = batched_gemm(1, 8, 8, 16, half), .output_bytes = 128, .inputs = {1, 1}, .kept = {1}},
      {.name = "d", .type = "view", .launches = false, .output_bytes = 128, .inputs = {2}},
      {.name = "e",
       .type = "linear",
       .op = gemm(8, 4, 8, half),
       .parameters = 32,
       .output_bytes = 64,
       .inputs = {3},
       .kept = {2}},
  };
  return graph;
}

}  // namespace

TEST_CASE("graphs that make no sense are refused, with the operator's name") {
  CHECK_NOTHROW(validate(small()));
  const auto refused = [](auto spoil, const std::string& what) {
    auto graph = small();
    spoil(graph.nodes[1]);
    CHECK_THROWS_WITH_AS(validate(graph), ("operator 1 (b): " + what).c_str(), input_error);
  };
  refused([](auto& n) { n.inputs = {1}; }, "inputs must be operators before it");
  refused([](auto& n) { n.inputs = {-1}; }, "inputs must be operators before it");
  refused([](auto& n) { n.owners = {1}; }, "owners must be operators before it");
  refused([](auto& n) { n.kept = {2}; }, "kept results must be its own or of operators before it");
  refused([](auto& n) { n.parameters = -1; }, "parameters must not be negative");
  refused([](auto& n) { n.shared_parameters = -1; }, "parameters must not be negative");
  refused([](auto& n) { n.output_bytes = -1; }, "bytes must not be negative");
  refused([](auto& n) { n.saved_bytes = -1; }, "bytes must not be negative");
  refused([](auto& n) { n.op.m = 0; }, "sizes must be at least 1");
  refused([](auto& n) { n.op.traffic_bytes = std::numeric_limits<double>::infinity(); },
          "traffic_bytes must be finite and not negative");
  refused([](auto& n) { n.op.causal_share = 0; }, "causal_share must be in (0, 1]");
  CHECK_THROWS_AS(validate(operator_graph{}), input_error);
}

TEST_CASE("an operator for more samples is the one made for them, where weights are read once") {
  const auto node = [](operator_shape op, std::int64_t parameters) {
    graph_node n;
    n.op = op;
    n.parameters = parameters;
    return n;
  };
  CHECK(scaled(node(gemm(8, 16, 4, half), 64), 3) == gemm(24, 16, 4, half));
  CHECK(scaled(node(batched_gemm(2, 8, 16, 4, half), 0), 3) == batched_gemm(6, 8, 16, 4, half));
  CHECK(scaled(node(gemm(8, 16, 4, half), 0), 3) == batched_gemm(3, 8, 16, 4, half));
  auto experts = batched_gemm(2, 24, 16, 4, half);
  CHECK(scaled(node(batched_gemm(2, 8, 16, 4, half), 128), 3) == experts);
  CHECK(scaled(node(flash_attention(4, 2, 8, 8, 16, true, half), 0), 3) == flash_attention(12, 6, 8, 8, 16, true, half));
  CHECK(scaled(node(norm(8, 16, half), 32), 3) == norm(24, 16, half));
  CHECK(scaled(node(embedding(8, 16, half), 99), 3) == embedding(24, 16, half));
  const convolution_sizes image{
      .images = 1, .height = 8, .width = 8, .in_channels = 3, .out_channels = 5, .kernel_height = 3, .kernel_width = 3};
  auto images = image;
  images.images = 3;
  CHECK(scaled(node(convolution(image, half), 135), 3) == convolution(images, half));
  CHECK_THROWS_AS((void)scaled(node(norm(8, 16, half), 0), 0), input_error);
  CHECK_THROWS_AS((void)scaled(node(norm(8, 16, half), 0), std::numeric_limits<std::int64_t>::max()), input_error);
}

TEST_CASE("backward: two products for one, without the model's inputs; the rest moves what was kept besides") {
  const auto graph = small();
  const auto needs = needs_gradient(graph);
  // The model's input wants no gradient: weights' only, 16 x 4 by way of 2 x 8 rows.
  const auto first = backward_operators(graph, needs, 0, 2);
  REQUIRE(first.all.size() == 1);
  CHECK(first.all == first.weights);
  CHECK(first.all[0].op == gemm(4, 16, 16, half));
  const auto gelu = backward_operators(graph, needs, 1, 2);
  REQUIRE(gelu.all.size() == 1);
  CHECK(gelu.all[0].op.traffic_bytes == 2 * 3 * 256);  // reads gradient and input, writes the gradient
  CHECK(gelu.weights.empty());
  const auto scores = backward_operators(graph, needs, 2, 2);
  REQUIRE(scores.all.size() == 2);
  CHECK(scores.all[0].op == batched_gemm(2, 8, 16, 8, half));
  CHECK(scores.all[1].op == batched_gemm(2, 16, 8, 8, half));
  CHECK(scores.weights.empty());
  CHECK(backward_operators(graph, needs, 3, 2).all.empty());
  const auto last = backward_operators(graph, needs, 4, 2);
  REQUIRE(last.all.size() == 2);
  CHECK(last.all[0].op == gemm(16, 8, 4, half));
  CHECK(last.all[1].op == gemm(8, 4, 16, half));
  CHECK(last.weights == std::vector{last.all[1]});
}

TEST_CASE("no gradient flows into what has no parameters before it") {
  auto graph = small();
  graph.nodes[0].parameters = 0;
  graph.nodes[0].op = elementwise(8, 1, 1, half);
  CHECK(needs_gradient(graph) == std::vector<char>{0, 0, 0, 0, 1});
  const auto needs = needs_gradient(graph);
  CHECK(backward_operators(graph, needs, 2, 1).all.empty());
  CHECK(backward_operators(graph, needs, 4, 1).all == backward_operators(graph, needs, 4, 1).weights);
  CHECK(gradients_of(graph, needs, 2).operands == 0);
}
