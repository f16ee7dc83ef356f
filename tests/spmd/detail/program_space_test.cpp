// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/detail/program_space.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

#include "../random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

std::vector<double> random_weights(random_source& random, const std::vector<spmd::device_kind>& kinds) {
  std::vector<double> weights;
  double all = 0;
  for (const auto& k : kinds) {
    weights.push_back(random.uniform(0, 1));
    all += weights.back() * k.count;
  }
  for (auto& w : weights) w /= all;
  return weights;
}

}  // namespace

TEST_CASE("no program with shares in a box takes less than its prices under any weights") {
  for (int instance = 0; instance < 300; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    CAPTURE(instance);
    auto graph = random_graph(random, random.integer(2, 6), {4, 6, 8});
    tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
    if (instance % 2 == 0) goal = add_backward(graph, goal.loss);
    const auto p = random_problem(random, std::move(graph), goal, 4);
    const spmd::detail::program_space space(p, spmd::detail::form_pairs::all, 1 << 20),
        joined(p, spmd::detail::form_pairs::joined, 1 << 20);
    const auto shares = random_weights(random, p.kinds);
    spmd::detail::share_box box;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      box.low.push_back(shares[k] * random.uniform(0, 1));
      box.high.push_back(shares[k] + (1.0 / p.kinds[k].count - shares[k]) * random.uniform(0, 1));
    }
    // Any prices give a program.
    const auto prices = spmd::detail::prices_in(box, p, random_weights(random, p.kinds));
    const auto solved = space.solve(prices);
    const auto program = space.program(solved.values, prices);
    double sum = 0;
    for (const auto& step : program)
      if (step.collective || !is_leaf(p.graph.at(step.node)))
        sum += spmd::detail::price_of(prices[static_cast<std::size_t>(step.node)], step);
    CHECK(sum == doctest::Approx(solved.value));
    CHECK(joined.solve(prices).bound <= solved.bound * (1 + 1e-12));
    const auto others = spmd::detail::prices_in(box, p, random_weights(random, p.kinds));
    const double seconds = spmd::seconds_of(spmd::stages_of(p, program), shares);
    CHECK(sum <= seconds * (1 + 1e-12));
    CHECK(space.solve(others).bound <= seconds * (1 + 1e-12));
  }
}

TEST_CASE("forms that no operator reads are not looked at") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 8}), w = add_parameter(g, "w", {8});
  const int y = add_layernorm(g, "y", {x, w});
  const int loss = add_sum(g, "loss", y);
  spmd::problem p{.graph = g, .goal = {.loss = loss, .gradients = {}}, .kinds = {{"device", 2}}};
  p.compute.assign(static_cast<std::size_t>(g.size()), {0, 1});
  p.collect.resize(static_cast<std::size_t>(g.size()));
  const spmd::detail::program_space space(p, spmd::detail::form_pairs::all, 1 << 20);
  const auto whole = spmd::detail::tensor_forms{spmd::tensor_form::whole()},
             rows = spmd::detail::tensor_forms{spmd::tensor_form::cut(0)};
  CHECK(space.choices(x) == std::vector{rows, whole});
  CHECK(space.choices(w) == std::vector{whole});
}
