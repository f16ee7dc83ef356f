// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/memory.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

#include "../sanitizer_share.hpp"
#include "random_graphs.hpp"

namespace {

using namespace hetsched;
using namespace spmd_test;

/// The peak by its definition: at each step all tensors that are there and of which somebody still reads that form.
double peak_of(const spmd::problem& p, const spmd::program& program, double share, double parameter_bytes) {
  using held = std::pair<int, spmd::tensor_form>;
  const auto bytes = [&](const held& t) {
    const auto& n = p.graph.at(t.first);
    return static_cast<double>(elements_of(n.shape)) * (t.second.is_cut() ? share : 1) *
           (is_parameter(n) ? parameter_bytes : element_bytes(p.graph.format));
  };
  const auto reads = [&](const spmd::instruction& step, const std::set<held>& there) {
    std::vector<held> all;
    const auto add = [&](int node, spmd::tensor_form form) {
      all.emplace_back(node, there.contains({node, form}) ? form : spmd::tensor_form::whole());
    };
    if (step.collective) {
      add(step.node, step.from);
      return all;
    }
    const auto& inputs = p.graph.at(step.node).inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) add(inputs[k], step.rule.inputs[k]);
    return all;
  };
  double peak = 0;
  std::set<held> made;
  for (std::size_t i = 0; i < program.size(); ++i) {
    made.emplace(program[i].node, program[i].collective ? program[i].to : program[i].rule.result);
    std::set<held> needed;
    needed.emplace(program[i].node, program[i].collective ? program[i].to : program[i].rule.result);
    auto later = made;
    for (const auto& r : reads(program[i], made)) needed.insert(r);
    for (std::size_t j = i + 1; j < program.size(); ++j) {
      for (const auto& r : reads(program[j], later))
        if (made.contains(r)) needed.insert(r);
      later.emplace(program[j].node, program[j].collective ? program[j].to : program[j].rule.result);
    }
    // Always parameters; to the end the loss, and each gradient as it is in the end.
    for (const auto& step : program)
      if (is_parameter(p.graph.at(step.node))) needed.emplace(step.node, step.rule.result);
    for (const auto& t : made)
      if (t.first == p.goal.loss) needed.insert(t);
    for (const auto& [parameter, gradient] : p.goal.gradients) {
      held last{gradient, spmd::tensor_form::whole()};
      bool now = false;
      for (std::size_t j = 0; j < program.size(); ++j)
        if (program[j].node == gradient) {
          last.second = program[j].collective ? program[j].to : program[j].rule.result;
          now = j <= i;
        }
      if (now) needed.insert(last);
    }
    double sum = 0;
    for (const auto& t : needed) sum += bytes(t);
    peak = std::max(peak, sum);
  }
  return peak;
}

spmd::problem trained(random_source& random, int operators) {
  auto graph = random_graph(random, operators, {8, 16, 24});
  auto goal = add_backward(graph, graph.size() - 1);
  return random_problem(random, std::move(graph), std::move(goal), 4);
}

/// Blocks of wide weights, on two devices of unequal speed and little memory.
spmd::problem wide(int blocks, std::int64_t rows) {
  tensor_graph g;
  int h = add_placeholder(g, "x", {rows, 1000});
  for (int i = 0; i < blocks; ++i)
    h = add_matmul(g, "h" + std::to_string(i), h, add_parameter(g, "w" + std::to_string(i), {1000, 1000}));
  auto goal = add_backward(g, add_sum(g, "loss", h));
  spmd::problem p{.graph = std::move(g), .goal = std::move(goal), .kinds = {{"fast", 1}, {"slow", 1}}};
  for (const auto& n : p.graph.nodes) {
    const double work = n.op == "matmul" ? 1 : 0;
    p.compute.push_back({0, work});
    p.compute.push_back({0, 2 * work});
    const double bytes = 0.5 * static_cast<double>(elements_of(n.shape)) / 1e6;
    p.collect.push_back({{2 * bytes, 0}, {0, bytes}, {0, bytes}, {bytes, 0}, {0, bytes}});
  }
  return p;
}

}  // namespace

TEST_CASE("what a program holds at its peak is what is still read, in the forms that are read") {
  for (int instance = 0; instance < 400 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    const auto p = trained(random, random.integer(2, 6));
    const auto found = spmd::synthesize(p, {.work = 1e4});
    REQUIRE(found);
    const auto memory = spmd::memory_of(p, found->program, 16);
    CAPTURE(instance);
    for (const double share : {0.0, 0.25, 0.7}) CHECK(memory.at(share) == doctest::Approx(peak_of(p, found->program, share, 16)));
    const double bytes = random.uniform(0.3, 1.2) * memory.at(1), most = memory.largest_share(bytes);
    if (most < 0) {
      CHECK(memory.at(0) > bytes);
    } else {
      CHECK(memory.at(most) <= bytes * (1 + 1e-12));
      if (most < 1) CHECK(memory.at(most + 1e-6) > bytes);
    }
  }
}

TEST_CASE(
    "with room enough the program is that of spmd::synthesize; with less it fits, takes no less time, and keeps the bound") {
  int fitted = 0, refused = 0;
  for (int instance = 0; instance < 200 / hetsched::test::sanitizer_share; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance) + 1000);
    const auto p = trained(random, random.integer(2, 6));
    const auto free = spmd::synthesize(p, {.work = 1e4});
    REQUIRE(free);
    std::vector<double> needs;
    for (const double share : free->shares) needs.push_back(peak_of(p, free->program, share, 16));
    CAPTURE(instance);
    auto enough = needs;
    for (auto& bytes : enough) bytes *= 1 + 1e-9;
    const auto same = spmd::synthesize_within(p, enough, 16, {.work = 1e4});
    REQUIRE(same.solution);
    CHECK(same.solution->seconds == free->seconds);
    for (std::size_t k = 0; k < needs.size(); ++k) CHECK(same.bytes[k] == doctest::Approx(needs[k]));
    const double less = random.uniform(0.5, 0.95);
    auto capacity = needs;
    for (auto& bytes : capacity) bytes *= less;
    const auto fit = spmd::synthesize_within(p, capacity, 16, {.work = 1e4});
    CHECK_FALSE((fit.solution && fit.none_fits));
    // No program holds less than that, with any shares.
    double held = 0;
    for (std::size_t k = 0; k < needs.size(); ++k) held += needs[k] * p.kinds[k].count;
    CHECK(spmd::least_bytes(p, 16) <= held * (1 + 1e-9));
    if (!fit.solution) {
      // What is said to be short is short.
      ++refused;
      bool lacks = false;
      for (std::size_t k = 0; k < capacity.size(); ++k) lacks = lacks || fit.bytes[k] > capacity[k];
      CHECK(lacks);
      continue;
    }
    ++fitted;
    double sum = 0;
    for (std::size_t k = 0; k < capacity.size(); ++k) {
      const double share = fit.solution->shares[k];
      sum += share * p.kinds[k].count;
      CHECK(peak_of(p, fit.solution->program, share, 16) <= capacity[k] * (1 + 1e-9));
      CHECK(fit.bytes[k] == doctest::Approx(peak_of(p, fit.solution->program, share, 16)));
    }
    CHECK(sum == doctest::Approx(1));
    CHECK(fit.solution->seconds == spmd::seconds_of(spmd::stages_of(p, fit.solution->program), fit.solution->shares));
    CHECK(fit.solution->seconds >= free->seconds * (1 - 1e-9));
    CHECK(fit.solution->bound <= free->seconds);
  }
  if (hetsched::test::sanitizer_share == 1) {
    CHECK(fitted > 20);
    CHECK(refused > 5);
  }
}

TEST_CASE("where data parallelism does not fit, only as many layers as need be are computed in another way") {
  const auto p = wide(8, 4000);
  const auto free = spmd::synthesize(p);
  REQUIRE(free);
  const auto memory = spmd::memory_of(p, free->program, 14);
  double least_s = 0, before_s = 0;
  int uses = 0;
  for (const double less : {1.0, 0.98, 0.9, 0.8, 0.7, 0.6}) {
    const std::vector<double> capacity(2, less * std::max(memory.at(free->shares[0]), memory.at(free->shares[1])));
    const auto fit = spmd::synthesize_within(p, capacity, 14);
    CAPTURE(less);
    if (!fit.solution) break;
    ++uses;
    if (least_s == 0) least_s = fit.solution->seconds;
    CHECK(fit.solution->seconds >= least_s);
    before_s = fit.solution->seconds;
  }
  CHECK(uses >= 4);
  CHECK(before_s > least_s);
  const auto none = spmd::synthesize_within(p, {1e6, 1e6}, 14);
  CHECK_FALSE(none.solution);
  CHECK(std::min(none.bytes[0], none.bytes[1]) > 1e6);
  // Eight weights of a million numbers with 14 bytes, and their gradients.
  CHECK(spmd::least_bytes(p, 14) == doctest::Approx(8e6 * 16));
  CHECK(none.none_fits);
  CHECK_FALSE(spmd::synthesize_within(p, {100e6, 30e6}, 14).none_fits);
}
