// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp/detail/chain_neighbours.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "../../sanitizer_share.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("neighbours of a chain are chains on the devices that there are") {
  const auto shape = [](int subcluster, int devices) {
    detail::interop_placement p;
    p.subcluster = subcluster;
    p.devices = devices;
    return p;
  };
  detail::interop_problem problem;
  problem.layers = 12;
  problem.devices = {4, 8};
  problem.placements = {shape(0, 1), shape(0, 2), shape(1, 2), shape(1, 4), shape(1, 8)};
  problem.placements[4].dominated = true;
  // Two stages on a device each and one on two; two stages on two devices each.
  const std::vector<detail::chain_part> from = {{0, 2, 0}, {0, 1, 1}, {1, 2, 2}};
  for (const bool unlike : {false, true})
    for (const bool use_all : {false, true}) {
      CAPTURE(unlike);
      CAPTURE(use_all);
      std::vector<std::vector<detail::chain_part>> met;
      detail::for_each_neighbour(problem, from, use_all, unlike, [&](const auto& parts) { met.push_back(parts); });
      CHECK(!met.empty());
      for (const auto& parts : met) {
        CHECK(parts != from);
        std::vector<int> taken(2), visits(2);
        int stages = 0, before = -1, placement = -1;
        for (const auto& p : parts) {
          CHECK(p.stages >= 1);
          CHECK(p.placement != 4);
          CHECK(problem.placements[static_cast<std::size_t>(p.placement)].subcluster == p.subcluster);
          CHECK(p.placement != placement);
          placement = p.placement;
          taken[static_cast<std::size_t>(p.subcluster)] +=
              p.stages * problem.placements[static_cast<std::size_t>(p.placement)].devices;
          visits[static_cast<std::size_t>(p.subcluster)] += p.subcluster != before ? 1 : 0;
          before = p.subcluster;
          stages += p.stages;
        }
        CHECK(stages <= 12);
        for (const std::size_t k : {0, 1}) {
          CHECK(taken[k] <= problem.devices[k]);
          CHECK((!use_all || taken[k] == problem.devices[k]));
          CHECK(visits[k] <= 1);
        }
      }
      const auto meets = [&](const std::vector<detail::chain_part>& parts) {
        return std::find(met.begin(), met.end(), parts) != met.end();
      };
      CHECK(meets({{0, 2, 0}, {0, 1, 1}, {1, 4, 2}}));                          // more devices
      CHECK(meets({{0, 2, 0}, {0, 1, 1}, {1, 2, 3}}));                          // wider stages
      CHECK(meets({{1, 2, 2}, {0, 2, 0}, {0, 1, 1}}) == !use_all);              // the other order
      CHECK(meets({{0, 1, 1}, {1, 2, 2}}) == !use_all);                         // a part less
      CHECK(meets({{0, 1, 1}, {0, 2, 0}, {1, 2, 2}}) == (unlike && !use_all));  // within a subcluster
      CHECK(meets({{0, 2, 0}, {0, 1, 1}, {1, 1, 3}, {1, 1, 2}}) == (unlike && !use_all));
    }
}

TEST_CASE("small changes make no plan of interop_dp worse, and some better" * doctest::skip(sanitizer_share > 1)) {
  const auto part = [](const char* device, int nodes) {
    return subcluster{.name = device,
                      .device = *find_device(device),
                      .nodes = nodes,
                      .devices_per_node = 8,
                      .intra_node = {5e-6, gbit_per_s(1200)},
                      .inter_node = {10e-6, gbit_per_s(100)}};
  };
  const cluster hardware{{part("A100-SXM4-40GB", 4), part("V100-SXM2-32GB", 4)}, {{0, 1, {1e-4, gbit_per_s(10)}}}};
  int better = 0;
  for (const int hidden : {4096, 8192})
    for (const int microbatches : {8, 32}) {
      CAPTURE(hidden);
      CAPTURE(microbatches);
      const analytic_cost_model costs(hardware, make_chain(gpt({.layers = 32, .hidden = hidden, .heads = 32})),
                                      {.recompute = {recomputation::none, recomputation::full}, .zero = {0, 1, 2}});
      const planning_problem problem{.microbatches = microbatches};
      const auto changed = interop_dp(hardware, costs, problem);
      const auto plain = interop_dp(hardware, costs, problem, {.looks = 0});
      REQUIRE(changed.has_value());
      REQUIRE(plain.has_value());
      CHECK(changed->predicted.iteration_s <= plain->predicted.iteration_s);
      CHECK(changed->evidence->objective_bound <= changed->predicted.iteration_s);
      better += changed->predicted.iteration_s < plain->predicted.iteration_s ? 1 : 0;
    }
  CHECK(better > 0);
}
