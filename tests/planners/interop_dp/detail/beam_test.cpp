// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp/detail/beam.hpp>

#include <doctest/doctest.h>

#include <vector>

#include <hetsched/search/pack_devices.hpp>

#include "../brute_force.hpp"
#include "../plan_checks.hpp"
#include "../random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct searched {
  std::vector<std::vector<detail::interop_stage>> plans;
  detail::interop_problem problem;
};

/// Plans of a beam with one microbatch in flight, that keep the period.
template <class Costs>
searched beam(const instance& given, const Costs& costs, double period, int width, std::size_t most) {
  price_book book(given.hardware, costs);
  searched s{{}, detail::make_interop_problem(book)};
  auto& problem = s.problem;
  if (problem.placements.empty()) return s;
  const detail::stage_prices table(book, problem);
  detail::mark_dominated(problem, table);
  const auto route = detail::make_route(given.hardware, given.options.order, given.problem.use_all_devices);
  std::vector<int> open;
  for (std::size_t p = 0; p < problem.placements.size(); ++p)
    if (!problem.placements[p].dominated) open.push_back(static_cast<int>(p));
  detail::beam_search search(problem, table, route, detail::warmup_algebra(warmup_rule::exact), given.problem.microbatches,
                             given.problem.use_all_devices);
  const std::vector<double> free(static_cast<std::size_t>(problem.layers) + 1);
  double last = 0;
  for (auto& found : search.solve(period, open, free, width, most)) {
    REQUIRE(found.latency >= last);
    last = found.latency;
    s.plans.push_back(std::move(found.stages));
  }
  return s;
}

/// That stages hold all layers once, lie on devices that there are, can be reached, and hold one microbatch; with what they take.
template <class Costs>
bare_plan checked(const instance& given, const Costs& costs, const searched& s,
                  const std::vector<detail::interop_stage>& stages) {
  pipeline_plan line{.microbatches = given.problem.microbatches};
  std::vector<submesh> shapes;
  int next = 0;
  for (const auto& stage : stages) {
    const auto& where = s.problem.placements[static_cast<std::size_t>(stage.placement)].where;
    REQUIRE(stage.layers.first == next);
    REQUIRE(stage.layers.size() >= 1);
    next = stage.layers.last;
    shapes.push_back(where.mesh);
    line.stages.push_back({.layers = stage.layers,
                           .devices = {{where.mesh, 0}},
                           .degrees = where.degrees,
                           .recompute = where.recompute,
                           .zero = where.zero,
                           .memory_capacity_bytes = subcluster_of(given.hardware, where.mesh).device.memory_bytes});
  }
  REQUIRE(next == given.costs.layers);
  auto placed = line;
  const auto groups = pack_devices(given.hardware, shapes);
  for (std::size_t i = 0; i < groups.size(); ++i) placed.stages[i].devices = {groups[i]};
  check_devices(given.hardware, placed, given.problem.use_all_devices);
  line.stages = side_by_side(given.hardware, line.stages);
  auto b = bare(given.hardware, costs, line);
  REQUIRE(b.slowest() < never);
  for (const int cap : b.caps) REQUIRE(cap >= 1);
  return b;
}

}  // namespace

TEST_CASE("without a limit on the period a beam finds a plan if there is one, under exact warm-ups") {
  random_source random(3101);
  int feasible = 0, infeasible = 0;
  for (int n = 0; n < 3000 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 7, .subclusters = 3, .devices = 5, .rich = true});
    if (n % 2 == 0) enrich(given, random);
    given.problem.use_all_devices = false;
    INFO(text(given));
    const auto check = [&](const auto& costs) {
      const auto found = beam(given, costs, never, 1, 1);
      const bool exists = brute_force_latency(given.hardware, costs, never) < never;
      REQUIRE(found.plans.empty() == !exists);
      (exists ? feasible : infeasible) += 1;
      for (const auto& stages : found.plans) (void)checked(given, costs, found, stages);
    };
    if (n % 3 == 0)
      check(by_node<additive_costs>{{given.costs}});
    else
      check(additive_costs{given.costs});
  }
  CHECK(feasible >= 500 / search_share);
  CHECK(infeasible >= 500 / search_share);
}

TEST_CASE("what a beam finds keeps the period, in order of what it takes") {
  random_source random(3102);
  int found_some = 0, least = 0;
  for (int n = 0; n < 1000 / search_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 7, .subclusters = 2, .devices = 6});
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const by_node<additive_costs> costs{{given.costs}};
    const double all = brute_force_latency(given.hardware, costs, never, given.problem.use_all_devices);
    if (all == never) continue;
    const double period = all * random.uniform(0.1, 1.2);
    const auto found = beam(given, costs, period, 3, 4);
    const double best = brute_force_latency(given.hardware, costs, period, given.problem.use_all_devices);
    double shortest = never;
    for (const auto& stages : found.plans) {
      const auto b = checked(given, costs, found, stages);
      REQUIRE(b.slowest() <= period * (1 + 1e-9));
      const auto counts = counts_at(warmup_rule::exact, b, period, 0);
      for (std::size_t i = 0; i < counts.size(); ++i) REQUIRE(std::min(counts[i], given.problem.microbatches) <= b.caps[i]);
      REQUIRE(b.latency() >= best * (1 - 1e-9));
      shortest = std::min(shortest, b.latency());
    }
    found_some += !found.plans.empty();
    least += !found.plans.empty() && near(shortest, best);
  }
  CHECK(found_some >= 200 / search_share);
  CHECK(least >= 50 / search_share);
}
