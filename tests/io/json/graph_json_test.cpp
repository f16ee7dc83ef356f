// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/json/graph_json.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace hetsched;

namespace {

std::string graph_of(const std::string& nodes) {
  return R"({"format": "hetsched/graph", "version": 1, "nodes": [)" + nodes + "]}";
}

std::string refusal(const std::string& nodes) {
  try {
    static_cast<void>(parse_graph(graph_of(nodes), "g.json"));
  } catch (const file_error& e) {
    return e.what();
  }
  return "";
}

const std::string leaves =
    R"({"name": "x", "op": "placeholder", "shape": [8, 6, 4]}, {"name": "w", "op": "parameter", "shape": [4, 6]})";

}  // namespace

TEST_CASE("graph.json: every operator, as the library adds it") {
  const auto file = parse_graph(graph_of(leaves + R"(,
      {"name": "h", "op": "matmul", "inputs": ["x", "w"]},
      {"name": "s", "op": "matmul", "inputs": ["x", "x"], "transpose": [false, true]},
      {"name": "p", "op": "softmax", "inputs": ["s"]},
      {"name": "n", "op": "layernorm", "inputs": ["h"]},
      {"name": "a", "op": "add", "inputs": ["n", "h"]},
      {"name": "g", "op": "gelu", "inputs": ["a"]},
      {"name": "r", "op": "reshape", "inputs": ["g"], "shape": [48, 6]},
      {"name": "t", "op": "transpose", "inputs": ["r"]},
      {"name": "u", "op": "transpose", "inputs": ["g"], "permutation": [1, 2, 0]},
      {"name": "ids", "op": "placeholder", "shape": [3, 8], "batch_dimension": 1},
      {"name": "e", "op": "embedding", "inputs": ["ids", "w"]},
      {"name": "loss", "op": "sum", "inputs": ["e"]},
      {"name": "after", "op": "relu", "inputs": ["e"]})"),
                                "g.json");
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 6, 4}), w = add_parameter(g, "w", {4, 6});
  const int h = add_matmul(g, "h", x, w), s = add_matmul(g, "s", x, x, false, true);
  add_softmax(g, "p", s);
  const int n = add_layernorm(g, "n", {h});
  const int a = add_elementwise(g, "a", "add", {n, h}, detail::linear_inputs("add"));
  const int gelu = add_elementwise(g, "g", "gelu", {a});
  const int r = add_reshape(g, "r", gelu, {48, 6});
  add_transpose(g, "t", r, {1, 0});
  add_transpose(g, "u", gelu, {1, 2, 0});
  const int ids = add_placeholder(g, "ids", {3, 8}, 1), e = add_embedding(g, "e", ids, w);
  const int loss = add_sum(g, "loss", e);
  add_elementwise(g, "after", "relu", {e});
  CHECK(file == graph_file{g, loss});
}

TEST_CASE("graph.json: convolutions and experts, as the library adds them") {
  const auto file = parse_graph(graph_of(R"(
      {"name": "x", "op": "placeholder", "shape": [8, 3, 9, 9]}, {"name": "k", "op": "parameter", "shape": [4, 3, 3, 3]},
      {"name": "c", "op": "conv2d", "inputs": ["x", "k"], "padding": 1},
      {"name": "d", "op": "conv2d", "inputs": ["x", "k"], "stride": 2},
      {"name": "m", "op": "max_pool2d", "inputs": ["c"], "window": [3, 3]},
      {"name": "a", "op": "avg_pool2d", "inputs": ["c"], "window": [3, 2], "stride": 1, "padding": 1},
      {"name": "g", "op": "placeholder", "shape": [2, 5, 4]}, {"name": "t", "op": "placeholder", "shape": [2, 5, 6]},
      {"name": "r", "op": "route", "inputs": ["g"], "choices": 2, "capacity": 3},
      {"name": "s", "op": "dispatch", "inputs": ["t", "r"]},
      {"name": "y", "op": "combine", "inputs": ["s", "r", "g"]},
      {"name": "o", "op": "sum", "inputs": ["y"]},
      {"name": "e", "op": "expand", "inputs": ["o"], "shape": [2, 2]})"),
                                "g.json");
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 3, 9, 9}), k = add_parameter(g, "k", {4, 3, 3, 3});
  const int c = add_convolution(g, "c", x, k, 1, 1);
  add_convolution(g, "d", x, k, 2, 0);
  add_pooling(g, "m", c, true, {3, 3, 3, 0});
  add_pooling(g, "a", c, false, {3, 2, 1, 1});
  const int gates = add_placeholder(g, "g", {2, 5, 4}), t = add_placeholder(g, "t", {2, 5, 6});
  const int r = add_route(g, "r", gates, 2, 3);
  const int y = add_combine(g, "y", add_dispatch(g, "s", t, r), r, gates);
  add_expand(g, "e", add_sum(g, "o", y), {2, 2});
  CHECK(file.graph == g);
  const std::string images = R"({"name": "x", "op": "placeholder", "shape": [8, 3, 9, 9]}, )";
  CHECK(refusal(images + R"({"name": "m", "op": "max_pool2d", "inputs": ["x"], "window": [10, 2]})")
            .find("larger than the image") != std::string::npos);
  CHECK(refusal(images + R"({"name": "m", "op": "relu", "inputs": ["x"], "stride": 2})").find("relu has no stride") !=
        std::string::npos);
  CHECK(refusal(images + R"({"name": "r", "op": "route", "inputs": ["x"]})").find("capacity") != std::string::npos);
}

TEST_CASE("graph.json: without a node named loss, the last one is it; numbers are fp16 unless it says otherwise") {
  auto text = graph_of(leaves);
  CHECK(parse_graph(text, "g.json").loss == 1);
  CHECK(parse_graph(text, "g.json").graph.format == number_format::fp16);
  text.insert(text.size() - 1, R"(, "dtype": "fp32")");
  CHECK(parse_graph(text, "g.json").graph.format == number_format::fp32);
}

TEST_CASE("graph.json: errors name the place") {
  const auto after = [&](const std::string& node) { return refusal(leaves + ", " + node); };
  CHECK(after(R"({"name": "h", "op": "matmul", "inputs": ["x", "y"]})")
            .find("g.json: /nodes/2/inputs/1: no node before this one is named \"y\"") == 0);
  CHECK(after(R"({"name": "x", "op": "relu", "inputs": ["w"]})").find("/nodes/2/name: the name \"x\" appears twice") !=
        std::string::npos);
  CHECK(after(R"({"name": "h", "op": "matmull", "inputs": ["x", "w"]})")
            .find("/nodes/2/op: unknown operator \"matmull\"; did you mean \"matmul\"") != std::string::npos);
  CHECK(after(R"({"name": "h", "op": "matmul", "inputs": ["x"]})").find("found 1 inputs, expected 2") != std::string::npos);
  CHECK(after(R"({"name": "h", "op": "matmul", "inputs": ["w", "w"]})").find("the inner sizes differ, found [4, 6] and [4, 6]") !=
        std::string::npos);
  CHECK(after(R"({"name": "h", "op": "relu", "inputs": ["w"], "transpose": [true, false]})").find("relu has no transpose") !=
        std::string::npos);
  CHECK(after(R"({"name": "h", "op": "relu", "inputs": ["w"], "shap": [1]})").find("shap") != std::string::npos);
  CHECK(after(R"({"name": "y", "op": "placeholder", "shape": [0]})").find("/nodes/2/shape/0") != std::string::npos);
  CHECK(after(R"({"name": "y", "op": "placeholder", "shape": [2], "batch_dimension": 1})").find("/nodes/2/batch_dimension") !=
        std::string::npos);
  CHECK(after(R"({"name": "y", "op": "placeholder", "shape": [1099511627776, 1099511627776]})").find("/nodes/2") !=
        std::string::npos);
  CHECK(after(R"({"name": "y", "op": "transpose", "inputs": ["w"], "permutation": [0, 0]})").find("/nodes/2") !=
        std::string::npos);
  CHECK(refusal("").find("/nodes: ") != std::string::npos);
}
