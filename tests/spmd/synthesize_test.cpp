// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/synthesize.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/spmd/detail/program_space.hpp>

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

}  // namespace

TEST_CASE("programs are the cheapest of all, and no bound is above") {
  const int instances = 1000 / hetsched::test::search_share;
  int judged = 0;
  double worst = 0, looked_at = 0, visited = 0;  // on larger graphs
  for (int instance = 0; instance < instances; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    const bool training = instance % 4 == 0;
    auto graph = random_graph(random, training ? random.integer(1, 2) : random.integer(2, 5), {4, 6, 8});
    tensor_goal goal{.loss = graph.size() - 1, .gradients = {}};
    if (training) goal = add_backward(graph, graph.size() - 1);
    // Some others end with what the loss sums up, whole.
    if (instance % 4 == 1 && !is_leaf(graph.at(graph.size() - 2)))
      goal = {.loss = -1, .gradients = {}, .whole = {graph.size() - 2}};
    const auto p = random_problem(random, std::move(graph), goal, 3);
    CAPTURE(instance);
    const auto found = spmd::synthesize(p, {.work = 1e6});
    REQUIRE(found);
    CAPTURE(lines_of(p, found->program));
    CHECK(found->seconds == doctest::Approx(spmd::seconds_of(spmd::stages_of(p, found->program), found->shares)));
    exhaustive_search all(p, found->shares);
    const auto least = all.best(30'000);
    if (all.visited >= 3'000) {
      looked_at += spmd::detail::program_space(p, spmd::detail::form_pairs::all, std::size_t{1} << 20).work();
      visited += static_cast<double>(all.visited);
    }
    if (!least) continue;
    ++judged;
    CHECK(found->bound <= *least * (1 + 1e-9));
    CHECK(found->seconds >= *least * (1 - 1e-9));
    CHECK(found->seconds <= *least * (1 + 1e-3) + 1e-12);
    worst = std::max(worst, found->seconds / found->bound - 1);
  }
  CHECK(judged > instances * 3 / 4);
  // A uniform-cost search goes through states, elimination through table entries.
  CHECK(10 * looked_at <= visited);
  MESSAGE(judged << " of " << instances << " judged, largest gap " << worst << "; on larger graphs " << looked_at
                 << " table entries for " << visited << " states");
}

TEST_CASE("whole parts cost little where there are many") {
  int checked = 0;
  double most = 0;
  for (int instance = 0; instance < 200 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    const auto graph = random_graph(random, random.integer(2, 8), {400, 440, 512});
    const auto p = random_problem(random, graph, {.loss = graph.size() - 1, .gradients = {}}, 4);
    const auto found = spmd::synthesize(p, {.work = 1e4});
    REQUIRE(found);
    const auto whole = spmd::round_shares(p, found->program, found->shares);
    std::int64_t fewest = 1 << 30;
    for (const auto& [of, parts] : whole.parts) {
      const auto number = of.second;
      fewest = std::min(fewest, number);
      std::int64_t sum = 0;
      for (const auto part : parts) sum += part;
      CHECK(sum == number);
    }
    if (fewest < 100 * p.device_count()) continue;
    CAPTURE(instance);
    CHECK(whole.seconds <= 1.01 * found->seconds);
    most = std::max(most, whole.seconds / found->seconds - 1);
    ++checked;
  }
  CHECK(checked > 10);
  MESSAGE("largest loss: " << most);
}

TEST_CASE("factors are gathered instead of gradients where they are smaller") {
  // Few samples and large weights over a slow network: x and dy travel, not dw (sufficient factors).
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 512}), w = add_parameter(g, "w", {512, 4096});
  const int y = add_matmul(g, "y", x, w), a = add_elementwise(g, "a", "square", {y});
  const int loss = add_sum(g, "loss", a);
  const auto goal = add_backward(g, loss);
  spmd::problem p{.graph = g, .goal = goal, .kinds = {{"device", 4}}};
  for (int i = 0; i < g.size(); ++i) {
    const double elements = static_cast<double>(elements_of(g.at(i).shape));
    p.compute.push_back({0, g.at(i).op == "matmul" ? 1.0 : 0.0});
    const double bytes = elements / 1e4;
    p.collect.push_back({.all_reduce = {2 * bytes, 0},
                         .reduce_scatter = {0, bytes},
                         .padded_gather = {0, bytes},
                         .broadcast_gather = {bytes, 0},
                         .all_to_all = {0, bytes}});
  }
  const auto found = spmd::synthesize(p);
  const auto even = spmd::even_data_parallel(p);
  REQUIRE(found);
  REQUIRE(even);
  CHECK(found->seconds < even->seconds / 2);
  for (const auto& step : found->program) CHECK_FALSE((step.collective && step.node == goal.gradients[0].second));
}

TEST_CASE("progress is told, and stops the proof") {
  random_source random(5);
  const auto graph = random_graph(random, 8, {8});
  const auto p = random_problem(random, graph, {.loss = graph.size() - 1, .gradients = {}}, 4);
  int told = 0;
  auto stop = [&](double seconds, double bound) {
    CHECK(bound <= seconds);
    ++told;
    return false;
  };
  const auto found = spmd::synthesize(p, {.gap = -1, .progress = stop});
  REQUIRE(found);
  CHECK(told == 1);
  CHECK(found->bound <= found->seconds);
}
