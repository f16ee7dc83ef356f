// SPDX-License-Identifier: Apache-2.0
// Segments with shares of their own: programs against exhaustive search, executed, and what they save.
#include <hetsched/model/tensor_segments.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/synthesize.hpp>

#include "../sanitizer_share.hpp"
#include "exhaustive.hpp"
#include "random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

std::string lines_of(const spmd::problem& p, const spmd::program& program) {
  std::string text;
  for (const auto& step : program) text += spmd::text_of(p.graph, step) + "\n";
  return text;
}

double seconds_with(const spmd::problem& p, const spmd::program& program, const std::vector<double>& shares) {
  return spmd::seconds_of(spmd::stages_of(p, program), shares, p.segments());
}

}  // namespace

TEST_CASE("segments: programs are the cheapest of all at their shares, and no bound is above") {
  int judged = 0, exchanged = 0, apart = 0;
  double worst = 0;
  const int instances = 60 / hetsched::test::search_share;
  for (int instance = 0; instance < instances; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    const bool training = instance % 4 == 0;
    auto graph = segmented(random, random_graph(random, training ? 1 : random.integer(2, 4), {4, 6, 8}));
    tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
    if (training) goal = add_backward(graph, goal.loss);
    auto p = random_problem(random, std::move(graph), goal, 3);
    for (auto& c : p.collect) c.all_to_all.slope_s *= random.uniform(0, 1);
    CAPTURE(instance);
    const auto found = spmd::synthesize(p, {.work = 2e5});
    REQUIRE(found);
    CAPTURE(lines_of(p, found->program));
    CHECK(found->seconds == doctest::Approx(seconds_with(p, found->program, found->shares)));
    for (const auto& step : found->program) exchanged += spmd::is_exchange(p, step);
    exhaustive_search all(p, found->shares);
    const auto least = all.best(30'000);
    if (!least) continue;
    ++judged;
    // At these shares no program is faster, and the proof is as good as it says.
    CHECK(found->seconds <= *least * (1 + 1e-3) + 1e-12);
    CHECK(found->seconds >= *least * (1 - 1e-9));
    CHECK(found->bound <= *least * (1 + 1e-9));
    worst = std::max(worst, found->seconds / found->bound - 1);
    for (int s = 1; s < p.segments(); ++s)
      for (std::size_t k = 0; k < p.kinds.size(); ++k)
        apart += std::abs(found->shares[static_cast<std::size_t>(s) * p.kinds.size() + k] - found->shares[k]) > 0.01;
    // Nor is any program at any other shares that are tried.
    for (int other = 0; other < (instance % 4 == 1 ? 2 : 0); ++other) {
      std::vector<double> shares;
      for (int s = 0; s < p.segments(); ++s) {
        double sum = 0;
        for (const auto& k : p.kinds) sum += (shares.push_back(random.uniform(0, 1)), shares.back() * k.count);
        for (std::size_t k = 0; k < p.kinds.size(); ++k) shares[shares.size() - 1 - k] /= sum;
      }
      if (const auto there = exhaustive_search(p, shares).best(30'000)) CHECK(found->bound <= *there * (1 + 1e-9));
    }
  }
  CHECK(judged > instances / 2);
  if (hetsched::test::search_share == 1) {
    CHECK(exchanged > 20);
    CHECK(apart > 20);
  }
  MESSAGE(judged << " of " << instances << " judged, largest gap " << worst << ", " << exchanged << " exchanges at borders, "
                 << apart << " shares that differ");
}

TEST_CASE("segments: programs compute what one device does, each segment on uneven shares of its own") {
  int exchanged = 0;
  for (int instance = 0; instance < 400 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    auto graph = segmented(random, random_model(random, random.integer(2, 8), {4, 6, 8}));
    CAPTURE(instance);
    tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
    if (instance % 2 == 0) goal = add_backward(graph, goal.loss);
    auto p = random_problem(random, std::move(graph), goal, 4);
    for (auto& c : p.collect) c.all_to_all = {0, 0.1 * c.all_to_all.slope_s};
    const auto leaves = random_leaves(random, p.graph);
    const auto expected = run_whole(p.graph, leaves);
    const auto found = spmd::synthesize(p, {.work = 1e4});
    REQUIRE(found);
    CAPTURE(lines_of(p, found->program));
    for (const auto& step : found->program) exchanged += spmd::is_exchange(p, step);
    std::vector<double> shares;
    for (int s = 0; s < p.segments(); ++s) {
      double sum = 0;
      for (const auto& k : p.kinds) sum += (shares.push_back(random.uniform(0, 1)), shares.back() * k.count);
      for (std::size_t k = 0; k < p.kinds.size(); ++k) shares[shares.size() - 1 - k] /= sum;
    }
    devices run(p, shares);
    REQUIRE_NOTHROW(run.run(found->program, leaves));
    const auto check = [&](int node, spmd::tensor_form form) {
      const auto& right = expected[static_cast<std::size_t>(node)].data;
      const auto got = run.whole(node, form).data;
      double scale = 1, most = 0;
      for (std::size_t i = 0; i < right.size(); ++i) {
        scale = std::max(scale, std::abs(right[i]));
        most = std::max(most, std::abs(right[i] - got[i]));
      }
      CHECK(most <= 1e-8 * scale);
    };
    check(goal.loss, run.has(goal.loss, spmd::tensor_form::whole()) ? spmd::tensor_form::whole() : spmd::tensor_form::partial());
    for (const auto& [parameter, gradient] : goal.gradients)
      for (const auto& step : found->program)
        if (step.node == parameter) check(gradient, step.rule.result);
  }
  if (hetsched::test::sanitizer_share == 1) CHECK(exchanged > 100);
}

TEST_CASE("segments: two halves that want other shares get them where the exchange is cheap") {
  // The first product is done fast by one device, the second by the other.
  tensor_graph g;
  const int x = add_placeholder(g, "x", {1000, 10});
  const int y = add_matmul(g, "y", x, add_parameter(g, "w", {10, 10}));
  const int z = add_matmul(g, "z", y, add_parameter(g, "v", {10, 10}));
  const int loss = add_sum(g, "loss", z);
  const auto problem_of = [](tensor_graph graph, double exchange) {
    spmd::problem p{.graph = std::move(graph), .goal = {}, .kinds = {{"first", 1}, {"second", 1}}};
    p.goal.loss = p.graph.size() - 1;
    for (const auto& n : p.graph.nodes) {
      p.compute.push_back({0, n.name == "y" ? 1.0 : n.name == "z" ? 3.0 : 0.0});
      p.compute.push_back({0, n.name == "y" ? 3.0 : n.name == "z" ? 1.0 : 0.0});
      p.collect.push_back({{9, 0}, {0, 9}, {0, 9}, {9, 0}, {0, exchange}});
    }
    return p;
  };
  const spmd::synthesis_options short_proof{.work = 2e4};
  const auto one = spmd::synthesize(problem_of(g, 0.1));
  auto [cut, now] = in_segments(g, {0, 0, 0, 1, 1, 1});
  REQUIRE(cut.size() == g.size() + 1);
  CHECK(cut.at(now[static_cast<std::size_t>(z)]).segment == 1);
  CHECK(cut.at(now[static_cast<std::size_t>(loss)]).inputs[0] == now[static_cast<std::size_t>(z)]);
  const auto two = spmd::synthesize(problem_of(cut, 0.1), short_proof);
  REQUIRE(one);
  REQUIRE(two);
  CHECK(one->seconds == doctest::Approx(2));  // half of both, with one stage 1/2 + 3/2
  CHECK(two->seconds == doctest::Approx(0.75 + 0.1 * 0.75 + 0.75));
  CHECK(two->shares[0] == doctest::Approx(0.75));
  CHECK(two->shares[2] == doctest::Approx(0.25));
  CHECK(two->bound <= two->seconds);
  // A dear exchange is not worth it: fewer differences, and no more than that.
  CHECK(spmd::synthesize(problem_of(cut, 10), short_proof)->seconds > two->seconds);
}

TEST_CASE("segments: parts of even work with few bytes between them") {
  tensor_graph g;
  int x = add_placeholder(g, "x", {64, 32});
  for (int i = 0; i < 12; ++i) {
    const std::int64_t width = i % 3 == 2 ? 2 : 64;  // narrow behind every third product
    x = add_matmul(g, "h" + std::to_string(i), x, add_parameter(g, "w" + std::to_string(i), {g.at(x).shape[1], width}));
  }
  add_sum(g, "loss", x);
  const auto found = segments_of(g, 4);
  std::vector<std::string> begins;
  for (std::size_t i = 1; i < found.size(); ++i)
    if (found[i] != found[i - 1]) begins.push_back(g.nodes[i].name);
  CHECK(begins.size() == 3);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& n = g.nodes[i];
    for (const int j : n.inputs)
      if (!is_leaf(g.at(j)) && found[static_cast<std::size_t>(j)] != found[i]) CHECK(g.at(j).shape[1] == 2);
  }
  CHECK(segments_of(g, 1) == std::vector<int>(g.nodes.size(), 0));
}

TEST_CASE("segments: a device holds its share of each segment's tensors") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {100, 10});
  const int y = add_elementwise(g, "y", "tanh", {x});
  add_sum(g, "loss", add_elementwise(g, "z", "tanh", {y}));
  auto p = spmd::problem{.graph = in_segments(g, {0, 0, 1, 1}).first, .goal = {}, .kinds = {{"a", 1}, {"b", 1}}};
  p.goal.loss = p.graph.size() - 1;
  for (std::size_t i = 0; i < p.graph.nodes.size(); ++i) {
    p.compute.insert(p.compute.end(), 2, {0, 1});
    p.collect.push_back({{9, 0}, {0, 9}, {0, 9}, {9, 0}, {0, 0.01}});
  }
  const auto found = spmd::synthesize(p);
  REQUIRE(found);
  // y and its exchanged copy are the most: 2 bytes for each of 1000 elements.
  const auto bytes = spmd::peak_bytes(p, found->program, {0.8, 0.2, 0.3, 0.7}, 2);
  CHECK(bytes[0] == doctest::Approx(2000 * (0.8 + 0.8)));
  CHECK(bytes[1] == doctest::Approx(2000 * (0.7 + 0.7)));
}
