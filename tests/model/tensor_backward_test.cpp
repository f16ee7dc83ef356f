// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/tensor_backward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>

#include "../sanitizer_share.hpp"
#include "../spmd/random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

}  // namespace

TEST_CASE("gradients of random graphs equal finite differences") {
  int checked = 0;
  for (int instance = 0; instance < 700 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    auto graph = instance % 7 == 5   ? random_images(random, random.integer(1, 4))
                 : instance % 7 == 6 ? random_experts(random)
                                     : random_graph(random, random.integer(2, 8), {2, 3, 4});
    const int loss = graph.size() - 1;
    const auto goal = add_backward(graph, loss);
    auto leaves = random_leaves(random, graph);
    const auto values = run_whole(graph, leaves);
    // Steps over a corner of relu or maximum have no meaning, nor do those that send a token elsewhere.
    for (const auto& [parameter, gradient] : goal.gradients) {
      CHECK(graph.at(gradient).shape == graph.at(parameter).shape);
      auto& data = leaves.at(parameter).data;
      const auto entry = static_cast<std::size_t>(random.integer(0, static_cast<int>(data.size()) - 1));
      const double at = data[entry];
      const auto loss_at = [&](double x) {
        data[entry] = x;
        const double value = run_whole(graph, leaves)[static_cast<std::size_t>(loss)].data[0];
        data[entry] = at;
        return value;
      };
      const double step = 1e-5;
      const double left = (loss_at(at) - loss_at(at - step)) / step, right = (loss_at(at + step) - loss_at(at)) / step;
      const double scale = std::max({1.0, std::abs(left), std::abs(values[static_cast<std::size_t>(loss)].data[0])});
      if (std::abs(left - right) > 1e-2 * scale) continue;
      CAPTURE(instance);
      CAPTURE(graph.at(parameter).name);
      CHECK(std::abs(values[static_cast<std::size_t>(gradient)].data[entry] - (left + right) / 2) <= 1e-4 * scale);
      ++checked;
    }
  }
  CHECK(checked > 300 / hetsched::test::sanitizer_share);
}

TEST_CASE("a backward needs a scalar loss that parameters reach") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {4, 3});
  const int w = add_parameter(g, "w", {3, 2});
  const int h = add_matmul(g, "h", x, w);
  CHECK_THROWS_AS(static_cast<void>(add_backward(g, h)), input_error);
  const int other = add_sum(g, "other", x);
  CHECK(add_backward(g, other).gradients.empty());
  const int loss = add_sum(g, "loss", h);
  const auto goal = add_backward(g, loss);
  REQUIRE(goal.gradients.size() == 1);
  CHECK(goal.gradients[0].first == w);
  CHECK(g.at(goal.gradients[0].second).gradient_of == h);
}

TEST_CASE("every node has a name of its own: parts of a gradient are numbered, and a node of the user's keeps its name") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {4, 4}), w = add_parameter(g, "w", {4, 4}), b = add_parameter(g, "d_w", {4});
  const int y = add_matmul(g, "y", x, w), z = add_matmul(g, "z", y, w);
  const int s = add_elementwise(g, "s", "mul", {z, b}, {{0}, {1}}), t = add_elementwise(g, "t", "add", {s, y}, {{0, 1}});
  const auto goal = add_backward(g, add_sum(g, "loss", t));
  std::set<std::string> names;
  for (const auto& n : g.nodes) names.insert(n.name);
  CHECK(names.size() == g.nodes.size());
  CHECK(g.at(b).name == "d_w");
  REQUIRE(goal.gradients.size() == 2);
  CHECK(g.at(goal.gradients[0].second).name == "d_w_3");  // of w: d_w is taken
  CHECK(g.at(goal.gradients[1].second).name == "d_d_w");
  CHECK(g.at(g.at(goal.gradients[1].second).inputs[0]).name == "d_d_w_1");
}

TEST_CASE("a convolution, a pooling and a route by hand") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {1, 1, 3, 3}), w = add_parameter(g, "w", {1, 1, 2, 2});
  const int valid = add_convolution(g, "valid", x, w), padded = add_convolution(g, "padded", x, w, 2, 1);
  const int most = add_pooling(g, "most", x, true, {2, 2, 1, 0}), mean = add_pooling(g, "mean", x, false, {3, 3, 1, 0});
  const int gates = add_placeholder(g, "gates", {1, 3, 2});
  const int first = add_route(g, "first", gates, 1, 1), both = add_route(g, "both", gates, 2, 2);
  std::map<int, tensor> leaves;
  const auto give = [&](int node, std::vector<double> values) {
    tensor t(g.at(node).shape);
    t.data = std::move(values);
    leaves.emplace(node, std::move(t));
  };
  give(x, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  give(w, {1, 10, 100, 1000});
  give(gates, {0.9, 0.1, 0.7, 0.3, 0.2, 0.8});
  const auto values = run_whole(g, leaves);
  const auto data = [&](int node) { return values[static_cast<std::size_t>(node)].data; };
  CHECK(data(valid) == std::vector<double>{5421, 6532, 8754, 9865});
  CHECK(data(padded) == std::vector<double>{1000, 3200, 7040, 9865});
  CHECK(data(most) == std::vector<double>{5, 6, 8, 9});
  CHECK(data(mean)[0] == doctest::Approx(5));
  CHECK(data(first) == std::vector<double>{1, 0, 0, 0, 0, 1});  // the second token finds no slot
  CHECK(data(both) == std::vector<double>{1, 2, 2, 0, 0, 1});   // second choices come after all first ones
}

TEST_CASE("convolutions and experts refuse shapes that do not fit") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {2, 3, 4, 4}), w = add_parameter(g, "w", {4, 2, 3, 3}),
            large = add_parameter(g, "l", {4, 3, 5, 5});
  CHECK_THROWS_AS(static_cast<void>(add_convolution(g, "c", x, w)), input_error);
  CHECK_THROWS_AS(static_cast<void>(add_convolution(g, "c", x, large)), input_error);
  CHECK_NOTHROW(static_cast<void>(add_convolution(g, "c", x, large, 1, 2)));
  CHECK_THROWS_AS(static_cast<void>(add_convolution(g, "c", x, large, 1, 5)), input_error);
  CHECK_THROWS_AS(static_cast<void>(add_pooling(g, "p", x, true, {2, 2, 0, 0})), input_error);
  const int gates = add_placeholder(g, "gates", {2, 5, 3}), tokens = add_placeholder(g, "tokens", {2, 5, 8});
  CHECK_THROWS_AS(static_cast<void>(add_route(g, "r", gates, 4, 1)), input_error);
  const int routes = add_route(g, "r", gates, 2, 4);
  CHECK_THROWS_AS(static_cast<void>(add_dispatch(g, "d", tokens, gates)), input_error);
  CHECK_THROWS_AS(static_cast<void>(add_combine(g, "y", tokens, routes)), input_error);
  CHECK(g.at(add_dispatch(g, "d", tokens, routes)).shape == std::vector<std::int64_t>{3, 2, 4, 8});
}
