// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/parallel_pipelines/detail/stage_orders.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>

#include "../../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::detail;
using namespace hetsched::test;

TEST_CASE("rows that differ little: one less, another, more, elsewhere or exchanged") {
  interop_problem problem;
  problem.layers = 9;
  for (const int subcluster : {0, 0, 1, 1}) problem.placements.emplace_back().subcluster = subcluster;
  problem.placements.back().dominated = true;
  const std::vector<int> from{0, 2, 1};
  std::set<std::vector<int>> rows;
  CHECK(for_each_stage_order(problem, from, [&](const std::vector<int>& row) { return rows.insert(row), true; }));
  std::set<std::vector<int>> expected{from};
  for (std::size_t i = 0; i <= 3; ++i)
    for (int p = 0; p < 3; ++p) {
      auto row = from;
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(i), p);
      expected.insert(row);
      if (i == 3) continue;
      row = from;
      row[i] = p;
      expected.insert(row);
      row = from;
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
      expected.insert(row);
      for (std::size_t j = 0; j < 3; ++j) {
        row = from;
        std::swap(row[i], row[j]);
        expected.insert(row);
      }
    }
  for (const auto& row : std::vector<std::vector<int>>{{2, 1, 0}, {1, 0, 2}}) expected.insert(row);  // one put elsewhere
  for (int p = 0; p < 2; ++p)
    for (int q = 0; q < 2; ++q) {  // one in two of its subcluster
      expected.insert({p, q, 2, 1});
      expected.insert({0, 2, p, q});
    }
  expected.insert({0, 2, 2, 1});
  CHECK(rows == expected);

  int visits = 0;
  CHECK_FALSE(for_each_stage_order(problem, from, [&](const auto&) { return ++visits < 5; }));
  CHECK(visits == 5);
  std::set<std::vector<int>> joined;
  for_each_stage_order(problem, {0, 0, 2}, [&](const std::vector<int>& row) { return joined.insert(row), true; });
  CHECK(joined.count({1, 2}) == 1);  // two neighbours of a subcluster, as one
}

TEST_CASE("a pipeline comes back to a subcluster where that is faster") {
  // The layer in the middle is slow on a, the others are slow on b.
  cluster hardware{.subclusters = {{"a", {.name = "A", .memory_bytes = 1'000'000}, 1, 2, {0, 1e9}, {0, 1e9}},
                                   {"b", {.name = "B", .memory_bytes = 1'000'000}, 1, 1, {0, 1e9}, {0, 1e9}}},
                   .links = {{0, 1, {0, 1e9}}}};
  cost_tables costs{.layers = 3, .classes = 1, .rows = {}, .prices = std::vector<transfer_cost>(2, transfer_cost(0.01, 0.01))};
  const auto row = [&](int subcluster, const std::vector<double>& seconds) {
    auto& r = costs.rows.emplace_back();
    r.where.mesh = {subcluster, 1, 1};
    for (const double s : seconds) r.layer.push_back({.forward_s = s / 2, .backward_s = s / 2, .weight_bytes = 1});
  };
  row(0, {1, 9, 1});
  row(1, {9, 1, 9});
  const auto found = parallel_pipelines(hardware, additive_costs{costs}, {.microbatches = 100}, {.listed = 0});
  REQUIRE(found);
  REQUIRE(found->pipelines.size() == 1);
  REQUIRE(found->pipelines.front().stages.size() == 3);
  CHECK(comes_back(*found));
  CHECK(found->predicted.iteration_s == doctest::Approx(102).epsilon(0.01));
  CHECK(found->evidence->objective_bound <= found->predicted.iteration_s);
  CHECK(found->evidence->objective_bound > 0.9 * found->predicted.iteration_s);
  // The search for one pipeline that does not come back; where it counts all, it does.
  const auto once =
      interop_dp(hardware, additive_costs{costs}, {.microbatches = 100}, {.enumeration = 0, .prove = false, .rows = false});
  REQUIRE(once);
  CHECK(once->predicted.iteration_s > 1.5 * found->predicted.iteration_s);
  const auto counted = interop_dp(hardware, additive_costs{costs}, {.microbatches = 100});
  REQUIRE(counted);
  CHECK(counted->predicted.iteration_s == doctest::Approx(found->predicted.iteration_s));
}
