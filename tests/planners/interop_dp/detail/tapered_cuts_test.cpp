// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp/detail/tapered_cuts.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "../random_instance.hpp"

using namespace hetsched;
using namespace hetsched::detail;
using namespace hetsched::test;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// The shortest makespan of all cuts, played.
double least_of_all(tapered_cuts& cuts, const interop_problem& problem, const std::vector<int>& row, int microbatches,
                    std::vector<interop_stage>& stages) {
  if (stages.size() == row.size())
    return stages.back().layers.last == problem.layers ? cuts.played(stages, microbatches, true).makespan_s : never;
  const int first = stages.empty() ? 0 : stages.back().layers.last;
  double least = never;
  for (int last = first + 1; last <= problem.layers; ++last) {
    stages.push_back({row[stages.size()], {first, last}});
    least = std::min(least, least_of_all(cuts, problem, row, microbatches, stages));
    stages.pop_back();
  }
  return least;
}

}  // namespace

TEST_CASE("cuts of settled placements: never better than the best of all, and most often as good") {
  random_source random(7311);
  int feasible = 0, found_any = 0, close = 0;
  for (int n = 0; n < 300 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 8, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 2 == 0});
    INFO(text(given));
    const additive_costs costs{given.costs};
    price_book book(given.hardware, costs);
    const auto problem = make_interop_problem(book);
    if (problem.placements.empty()) continue;
    const stage_prices table(book, problem);
    tapered_cuts cuts(problem, table, given.hardware, book.costs());
    std::vector<int> row;
    for (int i = random.integer(1, std::min(4, problem.layers)); i > 0; --i)
      row.push_back(random.integer(0, static_cast<int>(problem.placements.size()) - 1));
    const int microbatches = random.integer(1, 40);
    std::vector<interop_stage> stages;
    const double least = least_of_all(cuts, problem, row, microbatches, stages);
    const auto found = cuts.solve(row, microbatches, never, true);
    feasible += least < never;
    if (!(found.makespan_s < never)) continue;
    REQUIRE(least < never);
    ++found_any;
    REQUIRE(found.stages.size() == row.size());
    for (std::size_t i = 0; i < row.size(); ++i) CHECK(found.stages[i].placement == row[i]);
    CHECK(found.makespan_s >= least * (1 - 1e-9));
    close += found.makespan_s <= least * 1.02;
    CHECK(!(cuts.solve(row, microbatches, least * 0.999, true).makespan_s < never));
    CHECK(!(cuts.solve(row, microbatches, 0, true).makespan_s < never));
  }
  MESSAGE(close << " of " << feasible << " within 2 % of the best; " << feasible - found_any << " not found");
  CHECK(feasible > 100 / sanitizer_share);
  CHECK(close > feasible * 3 / 4);
}

TEST_CASE("many microbatches in flight, and stages that get shorter, end sooner than equal ones under the least warm-ups") {
  constexpr int layers = 160, stages = 16, microbatches = 64;
  cost_tables costs{.layers = layers, .classes = 1, .rows = {}, .prices = {}};
  costs.rows.push_back(
      {.where = {{0, 1, 1}, {}}, .layer = std::vector<stage_cost>(layers, {.forward_s = 1.0 / 30, .backward_s = 2.0 / 30})});
  costs.prices.assign(layers - 1, transfer_cost{});
  device own{.name = "d", .memory_bytes = bytes_t{1} << 40, .memory_bandwidth = 1e12};
  own.peak_flops.fill(1e12);
  const cluster hardware{.subclusters = {{.name = "a", .device = own, .nodes = 1, .devices_per_node = stages}}};
  const additive_costs model{costs};
  price_book book(hardware, model);
  const auto problem = make_interop_problem(book);
  const stage_prices table(book, problem);
  tapered_cuts cuts(problem, table, hardware, book.costs());
  const auto found = cuts.solve(std::vector<int>(stages, 0), microbatches, never, true);
  // Equal stages take (M + S - 1) t = 79; no schedule is below 71.8.
  CHECK(found.makespan_s < 76.5);
  CHECK(found.makespan_s > 71.8);
  CHECK(found.stages.front().layers.size() > found.stages.back().layers.size());
}
