// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/program.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/spmd/synthesize.hpp>

#include "../sanitizer_share.hpp"
#include "random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

double largest_difference(const tensor& a, const tensor& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) most = std::max(most, std::abs(a.data[i] - b.data[i]));
  return most;
}

/// The paper's example (Fig. 11): e3 = e1 e2, loss = sum(e3), on two equal devices.
spmd::problem figure_11() {
  tensor_graph g;
  const int e1 = add_placeholder(g, "e1", {4, 4}), e2 = add_parameter(g, "e2", {4, 4});
  const int e3 = add_matmul(g, "e3", e1, e2);
  const int loss = add_sum(g, "loss", e3);
  spmd::problem p{.graph = g, .goal = {.loss = loss, .gradients = {}}, .kinds = {{"device", 2}}};
  p.compute = {{}, {}, {0, 30}, {0, 2}};
  p.collect.assign(4, {.all_reduce = {20, 0},
                       .reduce_scatter = {10, 0},
                       .padded_gather = {10, 0},
                       .broadcast_gather = {12, 0},
                       .all_to_all = {5, 0}});
  return p;
}

spmd::instruction compute_step(const spmd::problem& p, int node, spmd::tensor_form result) {
  for (const auto& rule : spmd::rules_of(p.graph.at(node)))
    if (rule.result == result) return {.node = node, .rule = rule};
  FAIL("no such rule");
  return {};
}

double cost(const spmd::problem& p, const spmd::program& program) { return spmd::seconds_of(spmd::stages_of(p, program), {0.5}); }

}  // namespace

TEST_CASE("the programs of HAP's figure 11 cost what it says") {
  const auto p = figure_11();
  const auto whole = spmd::tensor_form::whole(), partial = spmd::tensor_form::partial();
  const spmd::instruction x{.node = 0, .rule = {.result = spmd::tensor_form::cut(0)}}, w{.node = 1, .rule = {.result = whole}};
  const auto product = compute_step(p, 2, spmd::tensor_form::cut(0));
  CHECK(cost(p, {x, w, product}) == doctest::Approx(15));                               // program 4
  CHECK(cost(p, {x, w, product, compute_step(p, 3, partial)}) == doctest::Approx(16));  // program 7, the answer
  const spmd::instruction gather{
      .node = 1, .collective = true, .how = spmd::collective::padded_gather, .from = spmd::tensor_form::cut(1), .to = whole};
  const spmd::instruction some{.node = 1, .rule = {.result = spmd::tensor_form::cut(1)}};
  CHECK(cost(p, {x, some, gather}) == doctest::Approx(10));           // program 5
  CHECK(cost(p, {x, some, gather, product}) == doctest::Approx(25));  // program 8
  // Program 9: a product of parts of a sum, and the sum of its whole size.
  const auto reduced = compute_step(p, 2, partial);
  auto sum = compute_step(p, 3, partial);
  sum.rule = {.inputs = {partial}, .result = partial, .shared = false};
  const spmd::instruction columns{.node = 0, .rule = {.result = spmd::tensor_form::cut(1)}};
  CHECK(cost(p, {columns, w, reduced}) == doctest::Approx(15));
  CHECK(cost(p, {columns, w, reduced, sum}) == doctest::Approx(17));

  const auto found = spmd::synthesize(p);
  REQUIRE(found);
  CHECK(found->seconds == doctest::Approx(16));
  CHECK(found->bound == doctest::Approx(16));
}

TEST_CASE("programs of random graphs compute what one device does, on uneven shares") {
  for (int instance = 0; instance < 2000 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    auto graph = random_model(random, random.integer(2, 8), {4, 6, 8});
    CAPTURE(instance);
    tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
    if (instance % 2 == 0) goal = add_backward(graph, graph.size() - 1);
    const auto p = random_problem(random, std::move(graph), goal, 4);
    const auto leaves = random_leaves(random, p.graph);
    const auto expected = run_whole(p.graph, leaves);
    const auto found = spmd::synthesize(p, {.work = 1e4});
    REQUIRE(found);
    std::string text;
    for (const auto& step : found->program) text += spmd::text_of(p.graph, step) + "\n";
    CAPTURE(text);
    // Shares that are not the best ones must do as well.
    std::vector<double> shares;
    double all = 0;
    for (const auto& k : p.kinds) {
      shares.push_back(random.uniform(0, 1));
      all += shares.back() * k.count;
    }
    for (auto& s : shares) s /= all;
    for (const auto& by : {found->shares, shares}) {
      devices run(p, by);
      REQUIRE_NOTHROW(run.run(found->program, leaves));
      const auto loss = static_cast<std::size_t>(goal.loss);
      const bool known = run.has(goal.loss, spmd::tensor_form::whole()) || run.has(goal.loss, spmd::tensor_form::partial());
      REQUIRE(known);
      const auto form =
          run.has(goal.loss, spmd::tensor_form::whole()) ? spmd::tensor_form::whole() : spmd::tensor_form::partial();
      CHECK(largest_difference(run.whole(goal.loss, form), expected[loss]) <= 1e-8 * (1 + std::abs(expected[loss].data[0])));
      for (const auto& [parameter, gradient] : goal.gradients) {
        double scale = 1;
        for (const double x : expected[static_cast<std::size_t>(gradient)].data) scale = std::max(scale, std::abs(x));
        // Whatever part of the parameter a device has, it has that part of the gradient.
        bool read = false;
        for (const auto& step : found->program) {
          if (step.node != parameter) continue;
          read = true;
          tensor all_of_it;
          REQUIRE_NOTHROW(all_of_it = run.whole(gradient, step.rule.result));
          CHECK(largest_difference(all_of_it, expected[static_cast<std::size_t>(gradient)]) <= 1e-8 * scale);
        }
        CHECK(read);
      }
    }
  }
}
