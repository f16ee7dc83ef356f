// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <hetsched/model/graph_layers.hpp>
#include <hetsched/model/transformer.hpp>

#include "traced_models.hpp"

using namespace hetsched;

namespace {

std::int64_t parameters_of(const operator_graph& graph) {
  return std::accumulate(graph.nodes.begin(), graph.nodes.end(), std::int64_t{0},
                         [](auto sum, const auto& n) { return sum + n.parameters; });
}

// What is thrown while a model is traced.
template <class Model>
std::string refusal(Model model) {
  try {
    (void)trace(model, {}, symbolic_shape{6, 4});
  } catch (const input_error& wrong) {
    return wrong.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("traced transformers have the published parameters and the formulas' FLOPs, boundaries and activations") {
  struct published {
    const char* name;
    transformer model;
    std::int64_t parameters;
  };
  const published models[] = {
      {"GPT-2", gpt({.layers = 12, .hidden = 768, .heads = 12}), 124'439'808},
      {"GPT-2 XL", gpt({.layers = 48, .hidden = 1600, .heads = 25}), 1'557'611'200},
      {"BERT-base", bert({.layers = 12, .hidden = 768, .heads = 12}), 109'514'298},
      {"Llama-2-7B", llama({.layers = 32, .hidden = 4096, .heads = 32}), 6'738'415'616},
      {"Mistral-7B", llama({.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}), 7'241'732'096},
      {"ViT-B/16", vit({.layers = 12, .hidden = 768, .heads = 12}), 86'567'656},
  };
  for (const auto& p : models) {
    CAPTURE(p.name);
    const auto graph = test::traced(p.model);
    CHECK_NOTHROW(validate(graph));
    CHECK(parameters_of(graph) == p.parameters);
    const auto expected = make_chain(p.model);
    const auto chain = make_layers(graph, {.layers = 0}).chain;
    REQUIRE(chain.size() == expected.size());
    CHECK_NOTHROW(validate(chain));
    CHECK(chain.parameter_bytes == expected.parameter_bytes);
    CHECK(chain.heads == expected.heads);
    for (int i = 0; i < chain.size(); ++i) {
      CAPTURE(i);
      const auto& got = chain.layers[static_cast<std::size_t>(i)];
      const auto& want = expected.layers[static_cast<std::size_t>(i)];
      CHECK(got.name == want.name);
      CHECK(got.forward_flops == want.forward_flops);
      CHECK(got.backward_flops == want.backward_flops);
      CHECK(got.weight_backward_flops == want.weight_backward_flops);
      CHECK(got.parameters == want.parameters);
      CHECK(got.shared_parameters == want.shared_parameters);
      CHECK(got.boundary_bytes == want.boundary_bytes);
      CHECK(got.selective_flops == want.selective_flops);
      CHECK(got.selective_saved_bytes == want.selective_saved_bytes);
      CHECK(got.recomputable == want.recomputable);
      // the formulas count the class token as a patch, and all tokens at the classifier
      if (p.model.patch_inputs == 0 || want.recomputable) CHECK(got.activation_bytes == want.activation_bytes);
    }
  }
}

TEST_CASE("ResNet-50 traced: 25,557,032 parameters, 4.09 G multiply-adds, the paper's image sizes") {
  const auto graph = trace(test::traced_resnet50{}, {.format = number_format::fp32}, symbolic_shape{3, 224, 224});
  CHECK_NOTHROW(validate(graph));
  CHECK(parameters_of(graph) == 25'557'032);
  double products = 0;
  std::vector<std::int64_t> pixels;
  for (const auto& n : graph.nodes) {
    products += product_flops(n.op) / 2;
    if (n.type == "conv2d") pixels.push_back(n.op.m);
  }
  // torchvision documents 4.09 G for this network
  CHECK(products == doctest::Approx(4.09e9).epsilon(0.001));
  // conv1 at 112^2, then 3, 4, 6, 3 blocks of three at 56^2, 28^2, 14^2, 7^2 (Table 1 of the paper), with one shortcut each; the
  // first convolution of a stage still runs on the pixels of the stage before
  REQUIRE(pixels.size() == 1 + 3 * 16 + 4);
  CHECK(std::count(pixels.begin(), pixels.end(), 112 * 112) == 1);
  CHECK(std::count(pixels.begin(), pixels.end(), 56 * 56) == 3 * 3 + 1 + 1);
  CHECK(std::count(pixels.begin(), pixels.end(), 28 * 28) == 3 * 4 + 1);
  CHECK(std::count(pixels.begin(), pixels.end(), 14 * 14) == 3 * 6 + 1);
  CHECK(std::count(pixels.begin(), pixels.end(), 7 * 7) == 3 * 3);

  const auto layers = make_layers(graph, {.products = 2, .layers = 16});
  CHECK(parameter_count(layers.chain) == 25'557'032);
  // the image wants no gradient: the first convolution computes that of its weights only
  CHECK(training_flops(layers.chain) == doctest::Approx(6 * products - 2 * 112.0 * 112 * 64 * 147).epsilon(1e-12));
}

TEST_CASE("a trace records what is read, kept and owned") {
  const auto graph = trace(
      [](tracer& net, const traced_tensor& x) {
        const auto outer = net.scope("net");
        const auto w = net.parameter({4, 4});
        const auto y = [&] {
          const auto inner = net.scope("first");
          return linear(x, w);
        }();
        const auto parts = split(relu(y), {2, 4}, 0);
        (void)mul(linear(parts[1], transpose(w)), parts[1]);
        (void)net.parameter({100});
      },
      {.format = number_format::fp16}, symbolic_shape{6, 4});
  REQUIRE(graph.size() == 6);
  const auto& nodes = graph.nodes;
  CHECK(nodes[0].name == "net/first/linear");
  CHECK(nodes[0].parameters == 16);
  CHECK(nodes[0].inputs.empty());
  CHECK(nodes[0].saved_bytes == 6 * 4 * 2);  // the model's input
  CHECK(nodes[1].name == "net/relu");
  CHECK(nodes[1].kept == std::vector{1});
  CHECK_FALSE(nodes[3].launches);
  CHECK(nodes[3].inputs == std::vector{1});
  CHECK(nodes[3].output_bytes == 4 * 4 * 2);
  CHECK(nodes[4].parameters == 0);
  CHECK(nodes[4].shared_parameters == 16);
  CHECK(nodes[4].owners == std::vector{0});
  CHECK(nodes[4].inputs == std::vector{3});
  CHECK(nodes[4].kept == std::vector{1});  // the storage of the view
  CHECK(nodes[5].kept == std::vector{4, 1});
  CHECK(nodes[5].op.traffic_bytes == 3 * 16 * 2);
}

TEST_CASE("shapes: broadcasting, windows, views") {
  const auto shapes = [](auto build) {
    symbolic_shape shape;
    (void)trace([&](tracer& net, const traced_tensor& x) { shape = build(net, x).shape; }, {}, symbolic_shape{8, 9, 12});
    return shape;
  };
  CHECK(shapes([](auto& net, auto& x) { return add(x, net.parameter({12})); }) == symbolic_shape{8, 9, 12});
  CHECK(shapes([](auto& net, auto& x) { return mul(net.parameter({2, 1, 9, 1}), x); }) == symbolic_shape{2, 8, 9, 12});
  CHECK(shapes([](auto&, auto& x) { return matmul(x, transpose(x)); }) == symbolic_shape{8, 9, 9});
  CHECK(shapes([](auto& net, auto& x) { return matmul(x, net.parameter({12, 5})); }) == symbolic_shape{8, 9, 5});
  CHECK(shapes([](auto& net, auto& x) {
          return conv2d(x, net.parameter({6, 4, 3, 3}), {.stride = 2, .padding = 1, .groups = 2});
        }) == symbolic_shape{6, 5, 6});
  CHECK(shapes([](auto&, auto& x) { return avg_pool2d(x, 2, {.stride = 2}); }) == symbolic_shape{8, 4, 6});
  CHECK(shapes([](auto&, auto& x) { return reshape(x, {-1, 6, 2}); }) == symbolic_shape{72, 6, 2});
  CHECK(shapes([](auto&, auto& x) { return transpose(x, 0, 2); }) == symbolic_shape{12, 9, 8});
  CHECK(shapes([](auto&, auto& x) { return concat(1, x, x, x); }) == symbolic_shape{8, 27, 12});
  CHECK(shapes([](auto&, auto& x) { return sum(x, 3); }) == symbolic_shape{1});
  CHECK(shapes([](auto& net, auto& x) { return embedding(x, net.parameter({7, 5})); }) == symbolic_shape{8, 9, 12, 5});
  CHECK(shapes([](auto&, auto& x) {
          return attention(x, split(x, {2, 6}, 0)[0], split(x, {2, 6}, 0)[0]);
        }) == symbolic_shape{8, 9, 12});
}

TEST_CASE("shapes that do not fit are refused with the operator and both shapes") {
  CHECK(refusal([](tracer& net, auto& x) {
          (void)linear(x, net.parameter({5, 4}));
        }) == "linear: [6 x 4] and [5 x 4] do not fit");
  CHECK(refusal([](tracer&, auto& x) { (void)matmul(x, x); }) == "matmul: [6 x 4] and [6 x 4] do not fit");
  CHECK(refusal([](tracer& net, auto& x) { (void)add(x, net.parameter({6})); }) == "add: [6 x 4] and [6] do not fit");
  CHECK(refusal([](tracer& net, auto& x) { (void)layer_norm(x, net.parameter({6}), net.parameter({4})); }) ==
        "layer_norm: [6 x 4] and [6] do not fit");
  CHECK(refusal([](tracer& net, auto& x) {
          (void)conv2d(x, net.parameter({1, 1, 3, 3}));
        }) == "conv2d: [6 x 4] and [1 x 1 x 3 x 3] do not fit");
  CHECK(refusal([](tracer&, auto& x) { (void)reshape(x, {5, -1}); }) == "reshape: [6 x 4] does not fill [5 x 1]");
  CHECK(refusal([](tracer&, auto& x) { (void)transpose(x, 0, 2); }) == "transpose: [6 x 4] has no axis 2");
  CHECK(refusal([](tracer&, auto& x) { (void)split(x, {2, 3}, 0); }) == "split: [6 x 4] is not as long as the parts [2 x 3]");
  CHECK(refusal([](tracer& net, auto& x) {
          (void)concat(0, x, net.parameter({2, 3}));
        }) == "concat: [6 x 4] and [2 x 3] do not fit");
  CHECK(refusal([](tracer&, auto& x) { (void)attention(x, x, x); }) == "attention: [6 x 4] and [6 x 4] do not fit");
  CHECK(refusal([](tracer& net, auto&) { (void)net.parameter({0, 3}); }) == "tensor [0 x 3]: sizes must be at least 1");
  CHECK(refusal([](tracer&, auto& x) {
          (void)max_pool2d(reshape(x, {1, 6, 4}), 5);
        }) == "max_pool2d: [1 x 6 x 4] is smaller than a window of 5 x 5");
}

TEST_CASE("weights that a batch of products shares are read once, also as left operands") {
  const auto shared = trace(
      [](tracer& net, auto x) {
        return matmul(x, net.parameter({1, 64, 64}));
      },
      {}, symbolic_shape{8, 2, 64});
  CHECK(scaled(shared.at(0), 4).traffic_bytes == 2 * (64 * 64 + 4 * 2 * 8 * 2 * 64));
  const auto left = trace([](tracer& net, auto x) { return matmul(net.parameter({5, 7}), x); }, {}, symbolic_shape{7, 9});
  CHECK(scaled(left.at(0), 4).traffic_bytes == 2 * (5 * 7 + 4 * (7 * 9 + 5 * 9)));
  CHECK(left.at(0).output_bytes == 2 * 5 * 9);
}

TEST_CASE("tensors of another trace, views of nothing and windows beyond 64 bits are refused") {
  tracer net(number_format::bf16, 0), other(number_format::bf16, 0);
  const auto there = gelu(other.input({4}));
  CHECK_THROWS_AS((void)net.record({.type = "view", .result = {4}, .reads = {other.parameter({4})}, .launches = false}),
                  input_error);
  CHECK_THROWS_AS((void)net.record({.type = "keeps", .result = {4}, .keeps = {there}}), input_error);
  CHECK_THROWS_AS((void)net.record({.type = "view", .result = {4}, .launches = false}), input_error);
  constexpr auto huge = std::int64_t{1} << 62;
  const auto image = net.input({3, 8, 8});
  CHECK_THROWS_WITH_AS((void)conv2d(image, net.parameter({3, 3, 3, 3}), {.padding = huge}), "integer overflow in a product",
                       input_error);
  CHECK_THROWS_WITH_AS((void)conv2d(image, net.parameter({3, 3, 3, 3}), {.groups = huge}), "integer overflow in a product",
                       input_error);
}
