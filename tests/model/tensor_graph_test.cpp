// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/tensor_graph.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>

namespace {

using namespace hetsched;

using shape = std::vector<std::int64_t>;

template <typename Build>
std::string refusal(Build build) {
  try {
    build();
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("shapes of results are inferred") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {2, 6, 4}), w = add_parameter(g, "w", {4, 10}), b = add_parameter(g, "b", {10});
  const int h = add_matmul(g, "h", x, w);
  CHECK(g.at(h).shape == shape{2, 6, 10});
  CHECK(g.at(add_elementwise(g, "s", "add", {h, b})).shape == shape{2, 6, 10});
  CHECK(g.at(add_matmul(g, "scores", x, x, false, true)).shape == shape{2, 6, 6});
  CHECK(g.at(add_matmul(g, "other", x, x, true, false)).shape == shape{2, 4, 4});
  CHECK(g.at(add_transpose(g, "t", x, {1, 2, 0})).shape == shape{6, 4, 2});
  CHECK(g.at(add_reshape(g, "r", x, {12, 4})).shape == shape{12, 4});
  CHECK(g.at(add_softmax(g, "p", h)).shape == shape{2, 6, 10});
  CHECK(g.at(add_sum(g, "loss", h)).shape == shape{});
  const int ids = add_placeholder(g, "ids", {2, 6});
  CHECK(g.at(add_embedding(g, "e", ids, w)).shape == shape{2, 6, 10});
}

TEST_CASE("products launch the kernel of their loops") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {2, 6, 4}), w = add_parameter(g, "w", {4, 10});
  CHECK(g.at(add_matmul(g, "h", x, w)).kernel == gemm(12, 10, 4, number_format::fp16));
  CHECK(g.at(add_matmul(g, "s", x, x, false, true)).kernel == batched_gemm(2, 6, 6, 4, number_format::fp16));
}

TEST_CASE("a reshape keeps cuts along the first of the dimensions that it merges or splits") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 6, 12});
  const auto follows = [&](int node) { return std::pair(g.at(node).input_loops[0], g.at(node).result_loops); };
  // 8 stays, 6 stays, 12 becomes 3 x 4.
  const auto [split_in, split_out] = follows(add_reshape(g, "split", x, {8, 6, 3, 4}));
  CHECK(split_in[0] == split_out[0]);
  CHECK(split_in[1] == split_out[1]);
  CHECK(split_in[2] == split_out[2]);
  CHECK(split_out[3] == -1);
  const auto [merged_in, merged_out] = follows(add_reshape(g, "merged", x, {48, 12}));
  CHECK(merged_in[0] == merged_out[0]);
  CHECK(merged_in[1] == -1);
  CHECK(merged_in[2] == merged_out[1]);
}

TEST_CASE("what does not fit is refused by name") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {2, 6}), w = add_parameter(g, "w", {4, 10});
  CHECK(refusal([&] { add_matmul(g, "h", x, w); }) == "operator h (matmul): the inner sizes differ, found [2, 6] and [4, 10]");
  CHECK(refusal([&] {
          add_elementwise(g, "s", "add", {x, w});
        }).starts_with("operator s (add): shapes that broadcast were expected"));
  CHECK(refusal([&] { add_reshape(g, "r", x, {5}); }) == "operator r (reshape): expected 12 elements as [2, 6] has, found [5]");
  CHECK(refusal([&] { add_transpose(g, "t", x, {0, 0}); }).starts_with("operator t (transpose)"));
  CHECK(refusal([&] { add_placeholder(g, "y", {3}, 1); }).starts_with("operator y (placeholder)"));
  CHECK(refusal([&] { add_parameter(g, "z", {0}); }).starts_with("operator z (parameter)"));
  CHECK(refusal([&] { add_softmax(g, "p", add_sum(g, "loss", x)); }).starts_with("operator p (softmax)"));
  CHECK(refusal([&] { add_parameter(g, "huge", {std::int64_t{1} << 40, std::int64_t{1} << 40}); }) != "");
}
