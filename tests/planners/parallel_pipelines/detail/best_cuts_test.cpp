// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/parallel_pipelines/detail/best_cuts.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "../../interop_dp/plan_checks.hpp"
#include "../../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::detail;
using namespace hetsched::test;

namespace {

/// The shortest iteration of all cuts, by the columns' figures.
double least_of_all(const interop_problem& problem, const stage_prices& table, const end_table& ends, const std::vector<int>& row,
                    int microbatches, std::vector<interop_stage>& stages) {
  if (stages.size() == row.size()) {
    if (stages.back().layers.last != problem.layers) return never;
    const auto found = column_of(problem, table, ends, warmup_algebra(warmup_rule::exact), stages, microbatches, false);
    return found ? found->iteration_s(microbatches) : never;
  }
  const int first = stages.empty() ? 0 : stages.back().layers.last;
  double least = never;
  for (int last = first + 1; last <= problem.layers; ++last) {
    stages.push_back({row[stages.size()], {first, last}});
    least = std::min(least, least_of_all(problem, table, ends, row, microbatches, stages));
    stages.pop_back();
  }
  return least;
}

}  // namespace

TEST_CASE("cuts of settled placements: never better than the best of all, and most often as good") {
  random_source random(7311);
  int feasible = 0, found_any = 0, close = 0;
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 8, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 2 == 0});
    INFO(text(given));
    const additive_costs costs{given.costs};
    price_book book(given.hardware, costs);
    const auto problem = make_interop_problem(book);
    if (problem.placements.empty()) continue;
    const stage_prices table(book, problem);
    const end_table ends(costs, problem);
    const warmup_algebra algebra(warmup_rule::exact);
    best_cuts cuts(problem, table, ends, algebra);
    std::vector<int> row;
    for (int i = random.integer(1, std::min(4, problem.layers)); i > 0; --i)
      row.push_back(random.integer(0, static_cast<int>(problem.placements.size()) - 1));
    const int microbatches = random.integer(1, 40);
    std::vector<interop_stage> stages;
    const double least = least_of_all(problem, table, ends, row, microbatches, stages);
    const auto found = cuts.solve(row, microbatches, false, never);
    feasible += least < never;
    if (!found) continue;
    REQUIRE(least < never);
    ++found_any;
    REQUIRE(found->stages.size() == row.size());
    for (std::size_t i = 0; i < row.size(); ++i) CHECK(found->stages[i].placement == row[i]);
    const double seconds = found->iteration_s(microbatches);
    CHECK(seconds >= least * (1 - 1e-9));
    close += seconds <= least * 1.01;
    CHECK(!cuts.solve(row, microbatches, false, least * 0.999));
  }
  MESSAGE(close << " of " << feasible << " within 1 % of the best; " << feasible - found_any << " not found");
  CHECK(feasible > 100);
  CHECK(close > feasible * 3 / 4);
}
