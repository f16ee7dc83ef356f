// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/tensor_backward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

#include "../sanitizer_share.hpp"
#include "../spmd/random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

}  // namespace

TEST_CASE("gradients of random graphs equal finite differences") {
  int checked = 0;
  for (int instance = 0; instance < 500 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    auto graph = random_graph(random, random.integer(2, 8), {2, 3, 4});
    const int loss = graph.size() - 1;
    const auto goal = add_backward(graph, loss);
    auto leaves = random_leaves(random, graph);
    const auto values = run_whole(graph, leaves);
    // Steps over a corner of relu or maximum have no meaning.
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
