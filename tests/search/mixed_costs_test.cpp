// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/validate.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/search/mixed_costs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;

namespace {

/// The analytic model at any microbatch size.
struct models {
  cluster hardware;
  layer_chain chain;
  std::shared_ptr<std::map<int, analytic_cost_model>> known = std::make_shared<std::map<int, analytic_cost_model>>();
  const analytic_cost_model& operator()(int size) const {
    return known->try_emplace(size, hardware, chain, analytic_options{.microbatch_size = size, .zero = {0, 1, 2, 3}})
        .first->second;
  }
};

/// Blocks of a transformer, without embedding and head.
layer_chain blocks(int count) {
  auto chain = make_chain(gpt({.layers = count, .hidden = 1024, .heads = 16, .vocab = 8192, .sequence = 512}));
  chain.layers.erase(chain.layers.begin());
  chain.layers.resize(static_cast<std::size_t>(count));
  return chain;
}

outcome<plan> planned(const models& costs, int microbatches, int size, bool mixed) {
  planning_problem problem{.microbatches = microbatches, .microbatch_size = size};
  auto first = interop_dp(costs.hardware, costs(size), problem);
  if (!mixed) return first;
  return with_mixed_stages(
      costs.hardware, costs, problem, {}, std::move(first),
      [](const cluster& seen, const auto& own, const planning_problem& asked) { return interop_dp(seen, own, asked); });
}

}  // namespace

TEST_CASE("samples by speed: as soon as the best of all whole numbers") {
  random_source random(17);
  int none = 0;
  for (int i = 0; i < 2000 / hetsched::test::search_share; ++i) {
    const int parts = random.integer(2, 3), samples = random.integer(2, 40);
    std::vector<int> replicas;
    std::vector<double> each_s;
    for (int p = 0; p < parts; ++p) {
      replicas.push_back(random.integer(1, 5));
      each_s.push_back(random.uniform(0.1, 1));
    }
    double best_s = std::numeric_limits<double>::infinity();
    for (int a = 1; a <= samples; ++a)
      for (int b = 1; b <= samples; ++b) {
        int left = samples - a * replicas[0] - (parts > 2 ? b * replicas[1] : 0);
        const int last = parts - 1, n = left / replicas[static_cast<std::size_t>(last)];
        if (left <= 0 || left % replicas[static_cast<std::size_t>(last)] != 0) continue;
        double all_s = std::max(a * each_s[0], n * each_s[static_cast<std::size_t>(last)]);
        if (parts > 2) all_s = std::max(all_s, b * each_s[1]);
        best_s = std::min(best_s, all_s);
      }
    const auto found = detail::shared_samples::find(replicas, each_s, samples);
    CAPTURE(i);
    if (found.empty()) {
      CHECK(best_s == std::numeric_limits<double>::infinity());
      ++none;
      continue;
    }
    int sum = 0;
    double found_s = 0;
    for (std::size_t p = 0; p < found.size(); ++p) {
      sum += found[p] * replicas[p];
      found_s = std::max(found_s, found[p] * each_s[p]);
    }
    CHECK(sum == samples);
    CHECK(found_s == best_s);
  }
  if (hetsched::test::search_share == 1) CHECK(none > 0);
}

TEST_CASE("every device of the cluster is one device of each view") {
  cluster c{.subclusters = {{"a", catalogue_device("A100-SXM4-40GB"), 3, 8, {5e-6, 100e9}, {1e-5, 10e9}},
                            {"v", catalogue_device("V100-SXM2-16GB"), 1, 4, {5e-6, 50e9}, {}},
                            {"p", catalogue_device("P100-PCIe-16GB"), 1, 2, {5e-6, 10e9}, {}}}};
  connect(c, "a", "v", {1e-5, 5e9});
  connect(c, "v", "p", {1e-5, 5e9});
  CHECK(mixed_views(c).size() == 4);  // a+v whole and by nodes; v+p whole and half
  connect(c, "a", "p", {1e-5, 1e9});
  const auto views = mixed_views(c);
  CHECK(views.size() == 7);
  for (const auto& view : views) {
    validate(view.hardware);
    std::multiset<std::pair<int, int>> seen;
    for (std::size_t k = 0; k < view.hardware.subclusters.size(); ++k) {
      const auto& s = view.hardware.subclusters[k];
      for (int node = 0; node < s.nodes; ++node)
        for (const auto& g : devices_behind(view, c, {{static_cast<int>(k), 1, s.devices_per_node}, node * s.devices_per_node}))
          for (int d = 0; d < g.mesh.device_count(); ++d) seen.emplace(g.mesh.subcluster, g.first_device + d);
    }
    CHECK(seen.size() == 30);
    CHECK(std::set<std::pair<int, int>>(seen.begin(), seen.end()).size() == 30);
  }
}

TEST_CASE("a view keeps the directions of links, by the slowest of them") {
  cluster c{.subclusters = {{"v", catalogue_device("V100-SXM2-16GB"), 1, 4, {5e-6, 50e9}, {}},
                            {"p", catalogue_device("P100-PCIe-16GB"), 1, 2, {5e-6, 10e9}, {}},
                            {"a", catalogue_device("A100-SXM4-40GB"), 1, 8, {5e-6, 100e9}, {}}}};
  c.links = {{0, 2, {1e-5, 5e9}, {}, 2e9}, {2, 1, {1e-5, 3e9}}, {0, 1, {1e-5, 4e9}}};
  int found = 0;
  for (const auto& view : mixed_views(c)) {
    const auto a = view.hardware.find("a"), mixed = view.hardware.find("v+p");
    if (!a || !mixed) continue;
    ++found;
    CHECK(view.hardware.between(*mixed, *a)->bandwidth == 5e9);
    CHECK(view.hardware.between(*a, *mixed)->bandwidth == 2e9);
  }
  CHECK(found > 0);
}

TEST_CASE("one layer on two unlike devices: the shares are the best of all") {
  cluster c{.subclusters = {{"fast", catalogue_device("A100-SXM4-40GB"), 1, 1, {}, {}},
                            {"slow", catalogue_device("V100-SXM2-32GB"), 1, 1, {}, {}}}};
  connect(c, "fast", "slow", {1e-5, 50e9});
  const models one{c, blocks(1)};
  const auto alone = planned(one, 16, 16, false), both = planned(one, 16, 16, true);
  REQUIRE(alone);
  REQUIRE(both);
  CHECK(both->predicted.iteration_s < 0.9 * alone->predicted.iteration_s);
  double best_s = std::numeric_limits<double>::infinity();
  for (int n = 1; n < 16; ++n) {
    auto p = *both;
    p.pipelines[0].stages[0].shares.data = {n / 16.0, 1 - n / 16.0};
    const auto judged = evaluate(c, one, std::move(p));
    REQUIRE(judged);
    best_s = std::min(best_s, judged->plan.predicted.iteration_s);
  }
  CHECK(both->predicted.iteration_s == best_s);
}

TEST_CASE("one sample on unlike devices: the heads of each are the best of all") {
  cluster c{.subclusters = {{"fast", catalogue_device("A100-SXM4-40GB"), 1, 1, {}, {}},
                            {"slow", catalogue_device("V100-SXM2-32GB"), 1, 2, {1e-6, 100e9}, {}}}};
  connect(c, "fast", "slow", {1e-6, 100e9});
  const models one{c, blocks(1)};
  const auto alone = planned(one, 1, 1, false), both = planned(one, 1, 1, true);
  REQUIRE(alone);
  REQUIRE(both);
  CHECK(both->predicted.iteration_s < 0.9 * alone->predicted.iteration_s);
  CHECK(both->pipelines[0].stages[0].degrees == degrees{.tensor = 3});
  double best_s = std::numeric_limits<double>::infinity();
  for (int n = 1; 2 * n < 16; ++n) {
    auto p = *both;
    p.pipelines[0].stages[0].shares.tensor = {1 - n / 8.0, n / 16.0, n / 16.0};
    const auto judged = evaluate(c, one, std::move(p));
    REQUIRE(judged);
    best_s = std::min(best_s, judged->plan.predicted.iteration_s);
  }
  CHECK(both->predicted.iteration_s == best_s);
}

TEST_CASE("with mixed stages no plan is worse, and evaluate says the same of it") {
  random_source random(4);
  const int cases = std::max(3, 30 / hetsched::test::search_share);
  int mixed = 0, by_room = 0, by_heads = 0;
  for (int i = 0; i < cases; ++i) {
    const auto pick = [&](const char* a, const char* b) { return catalogue_device(random.integer(0, 1) ? a : b); };
    cluster c{
        .subclusters = {
            {"a",
             pick("A100-SXM4-40GB", "H100-SXM5-80GB"),
             random.integer(1, 2),
             1 << random.integer(0, 2),
             {5e-6, 100e9},
             {1e-5, 10e9}},
            {"b", pick("V100-SXM2-16GB", "T4"), random.integer(1, 2), 1 << random.integer(0, 1), {5e-6, 50e9}, {1e-5, 10e9}}}};
    // Every third case has single samples, which only heads can be shared out of.
    const bool single = i % 3 == 2;
    connect(c, "a", "b", {single ? 1e-6 : 1e-5, random.uniform(1e9, 40e9) * (single ? 10 : 1)});
    const models costs{c, blocks(random.integer(1, 2))};
    const int size = single ? 1 : 1 << random.integer(2, 4), microbatches = random.integer(4, 32) / (single ? 4 : 1);
    const auto plain = planned(costs, microbatches, size, false), either = planned(costs, microbatches, size, true);
    CAPTURE(i);
    REQUIRE(either.has_value() >= plain.has_value());
    if (!either) continue;
    if (plain) CHECK(either->predicted.iteration_s <= plain->predicted.iteration_s);
    const auto& evidence = either->evidence.value();
    CHECK(evidence.objective_bound <= evidence.objective_value * (1 + 1e-9));
    auto again = evaluate(c, costs, *either);
    REQUIRE(again);
    CHECK(again->shortage.empty());
    again->plan.evidence = either->evidence;
    CHECK(again->plan == *either);
    for (const auto& s : either->pipelines[0].stages) {
      mixed += is_mixed(s.devices);
      by_heads += !s.shares.tensor.empty();
      if (!is_mixed(s.devices) || s.zero < 1) continue;
      // Memory by room: no fuller than by equal shares.
      ++by_room;
      CHECK(s.shares.state.size() == static_cast<std::size_t>(s.degrees.data));
      auto equal = *either;
      for (auto& other : equal.pipelines[0].stages)
        other.shares.state.assign(static_cast<std::size_t>(other.degrees.data), 1.0 / other.degrees.data);
      const auto e =
          evaluate(c, costs, equal)->plan.pipelines[0].stages[static_cast<std::size_t>(&s - either->pipelines[0].stages.data())];
      CHECK(static_cast<double>(s.memory_bytes) / static_cast<double>(s.memory_capacity_bytes) <=
            static_cast<double>(e.memory_bytes) / static_cast<double>(e.memory_capacity_bytes) * (1 + 1e-9));
    }
  }
  if (hetsched::test::search_share == 1) {
    CHECK(mixed >= cases / 10);
    CHECK(by_room > 0);
    CHECK(by_heads > 0);
  }
}
