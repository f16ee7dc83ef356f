// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hetauto/detail/decisions.hpp>
#include <hetsched/planners/interop_dp/detail/judge.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// The shortest iteration over every chain of stages, each on any placement, that keeps the principles: tried one by one.
double shortest(const instance& given, const opaque_costs& costs, const std::string& schedule,
                hetauto_principles principles = {}) {
  std::vector<placement> all;
  for (const auto& r : given.costs.rows) all.push_back(r.where);
  double best = infinity;
  plan made;
  made.pipelines.push_back({.microbatches = given.problem.microbatches, .schedule = {.name = schedule}});
  auto& line = made.pipelines.front();
  std::vector<submesh> shapes;
  std::vector<placement> chain;
  const auto judge = [&] {
    std::vector<int> used(given.hardware.subclusters.size());
    for (const auto& m : shapes) used[static_cast<std::size_t>(m.subcluster)] += m.device_count();
    for (std::size_t k = 0; k < used.size(); ++k) {
      const int there = given.hardware.subclusters[k].device_count();
      if (used[k] > there || (given.problem.use_all_devices && used[k] < there)) return;
    }
    const auto groups = pack_devices(given.hardware, shapes);
    for (std::size_t i = 0; i < groups.size(); ++i) line.stages[i].devices = {groups[i]};
    const auto worth = evaluate(given.hardware, costs, made);
    if (worth && worth->shortage.empty()) best = std::min(best, worth->plan.predicted.iteration_s);
  };
  const auto keeps_principles = [&](const placement& next) {
    const auto on_same = [&](const placement& p) { return p.mesh.subcluster == next.mesh.subcluster; };
    const auto other = [&](const placement& p) { return on_same(p) && !(p == next); };
    if (principles.uniform && std::any_of(chain.begin(), chain.end(), other)) return false;
    const bool away = !chain.empty() && !on_same(chain.back());
    return !(principles.consecutive && away && std::any_of(chain.begin(), chain.end(), on_same));
  };
  const std::function<void(int)> extend = [&](int first) {
    if (first == given.costs.layers) return judge();
    for (const auto& where : all) {
      if (!keeps_principles(where)) continue;
      for (int last = first + 1; last <= given.costs.layers; ++last) {
        line.stages.push_back(
            {.layers = {first, last}, .degrees = where.degrees, .recompute = where.recompute, .zero = where.zero});
        shapes.push_back(where.mesh);
        chain.push_back(where);
        extend(last);
        line.stages.pop_back();
        shapes.pop_back();
        chain.pop_back();
      }
    }
  };
  extend(0);
  return best;
}

}  // namespace

TEST_CASE("hetauto that saw everything has the best plan under its principles") {
  random_source random(16);
  int plans = 0, refusals = 0, across = 0;
  const int count = 200 / search_share;
  for (int i = 0; i < count; ++i) {
    instance_limits limits;
    limits.layers = 4;
    limits.subclusters = 2;
    limits.devices = 4;
    const auto given = random_instance(random, limits);
    const opaque_costs costs{given.costs};
    INFO(text(given));
    const double best = shortest(given, costs, "virtual_1f1b");
    hetauto_options options;
    options.search.rollouts = 1'000'000;
    const auto found = hetauto(given.hardware, costs, given.problem, options);
    CHECK(found.has_value() == (best < infinity));
    if (!found) {
      CHECK(found.why_not().why == refusal::kind::infeasible);
      ++refusals;
      continue;
    }
    ++plans;
    std::set<int> used;
    for (const auto& s : found->pipelines.front().stages) used.insert(s.devices.front().mesh.subcluster);
    across += used.size() > 1 ? 1 : 0;
    CHECK(found->predicted.iteration_s == doctest::Approx(best).epsilon(1e-12));
    CHECK(found->evidence->sum_bound == found->evidence->objective_value);
    CHECK(found->evidence->objective_bound <= found->evidence->objective_value);
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);

    options.search.rollouts = 5;  // what is not seen to the end is not better, and not called proved
    if (const auto some = hetauto(given.hardware, costs, given.problem, options))
      CHECK(some->predicted.iteration_s >= best * (1 - 1e-12));
  }
  if (sanitizer_share == 1) {
    CHECK(plans > 50);
    CHECK(refusals > 5);
    CHECK(across > 20);
  }
}

TEST_CASE("hetauto that decides about microbatches, too, has the best plan of all their numbers") {
  random_source random(17);
  int plans = 0;
  std::set<int> chosen;
  for (int i = 0; i < 60 / search_share; ++i) {
    instance_limits limits;
    limits.layers = 4;
    limits.subclusters = 2;
    limits.devices = 3;
    // Larger microbatches take longer, but not by as much, and hold more.
    auto given = random_instance(random, limits);
    const double growth = random.uniform(1.3, 2.2);
    std::vector<opaque_costs> costs;
    for (int step = 0; step < 3; ++step) {
      costs.push_back({given.costs});
      for (auto& row : given.costs.rows)
        for (auto& layer : row.layer) {
          layer.forward_s *= growth;
          layer.backward_s *= growth;
          layer.activation_bytes *= 2;
        }
    }
    const auto costs_for = [&](int size) -> const opaque_costs& { return costs[size == 1 ? 0 : size == 2 ? 1 : 2]; };
    double best = infinity;
    int best_size = 0;
    for (const int size : {1, 2, 4}) {
      given.problem.microbatches = 4 / size;
      if (const double worth = shortest(given, costs_for(size), "virtual_1f1b"); worth < best) {
        best = worth;
        best_size = size;
      }
    }
    INFO(text(given));
    hetauto_options options;
    options.search.rollouts = 1'000'000;
    const auto found = hetauto_of_batch(given.hardware, costs_for, 4, given.problem, options);
    REQUIRE(found.has_value() == (best < infinity));
    if (!found) continue;
    ++plans;
    const auto& line = found->pipelines.front();
    CHECK(found->predicted.iteration_s == doctest::Approx(best).epsilon(1e-12));
    CHECK(found->evidence->sum_bound == found->evidence->objective_value);
    CHECK(found->evidence->objective_bound <= found->evidence->objective_value);
    CHECK(line.microbatches * line.microbatch_size == 4);
    chosen.insert(best_size);
  }
  if (sanitizer_share == 1) {
    CHECK(plans > 30);
    CHECK(chosen.size() == 3);
  }
}

TEST_CASE("hetauto under the least warm-ups has hetauto_exact's plans") {
  random_source random(33);
  int plans = 0, equal = 0;
  for (int i = 0; i < 200 / search_share; ++i) {
    instance_limits limits;
    limits.layers = 5;
    limits.subclusters = 2;
    limits.devices = 4;
    const auto given = random_instance(random, limits);
    const additive_costs costs{given.costs};
    INFO(text(given));
    hetauto_options options{.schedule = "exact_1f1b"};
    options.search.rollouts = 1'000'000;
    const auto found = hetauto(given.hardware, costs, given.problem, options);
    const auto best = hetauto_exact(given.hardware, costs, given.problem, {.gap = 0});
    REQUIRE(found.has_value() == best.has_value());
    if (!found) continue;
    ++plans;
    // The other one plays more warm-ups, too.
    CHECK(found->predicted.iteration_s >= best->predicted.iteration_s * (1 - 1e-9));
    equal += found->predicted.iteration_s <= best->predicted.iteration_s * (1 + 1e-9);
    CHECK(found->pipelines.front().schedule.name == "exact_1f1b");
  }
  CHECK(equal > plans * 9 / 10);
  if (sanitizer_share == 1) CHECK(plans > 100);
}

TEST_CASE("no plan of hetauto is below hetauto_exact's bound, on the objective that it bounds") {
  random_source random(34);
  int plans = 0, best = 0;
  for (int i = 0; i < 40 / search_share; ++i) {
    instance_limits limits;
    limits.layers = 12;
    limits.subclusters = 3;
    limits.devices = 6;
    const auto given = random_instance(random, limits);
    const additive_costs costs{given.costs};
    INFO(text(given));
    // No plans are counted, as on large clusters.
    const auto exact = hetauto_exact(given.hardware, costs, given.problem, {.enumeration = 0});
    if (!exact) continue;
    for (const std::uint64_t seed : {0, 1, 2}) {
      hetauto_options options{.schedule = "exact_1f1b"};
      options.search.rollouts = 500;
      options.search.seed = seed;
      const auto found = hetauto(given.hardware, costs, given.problem, options);
      if (!found) continue;
      ++plans;
      best += exact->predicted.iteration_s <= found->predicted.iteration_s * (1 + 1e-9) ? 1 : 0;
      const auto objective = [&](const detail::interop_problem& placed, const auto& table) -> outcome<plan> {
        std::vector<detail::interop_stage> stages;
        for (const auto& s : found->pipelines.front().stages)
          for (std::size_t p = 0; p < placed.placements.size(); ++p)
            if (placed.placements[p].where == s.where()) stages.push_back({static_cast<int>(p), s.layers});
        REQUIRE(stages.size() == found->pipelines.front().stages.size());
        const detail::plan_judge judge(given.hardware, costs, placed, table, detail::warmup_algebra(warmup_rule::exact),
                                       given.problem);
        const auto met = judge.judge(stages);
        REQUIRE(met.has_value());
        CHECK(met->objective_s >= exact->evidence->objective_bound * (1 - 1e-9));
        return refusal{refusal::kind::stopped, ""};
      };
      price_book book(given.hardware, costs);
      static_cast<void>(detail::with_tables(book, objective));
    }
  }
  if (sanitizer_share == 1) {
    CHECK(plans > 60);
    CHECK(best == plans);
  }
}

TEST_CASE("hetauto has the best plan without one or both of the principles, and never a worse one than with them") {
  random_source random(29);
  int plans = 0, better = 0;
  for (int i = 0; i < 60 / search_share; ++i) {
    instance_limits limits;
    limits.layers = 4;
    limits.subclusters = 2;
    limits.devices = 3;
    const auto given = random_instance(random, limits);
    const opaque_costs costs{given.costs};
    INFO(text(given));
    hetauto_options options;
    options.search.rollouts = 1'000'000;
    double with_all = 0;
    for (const auto principles : {hetauto_principles{}, hetauto_principles{.consecutive = false},
                                  hetauto_principles{.uniform = false}, hetauto_principles{false, false}}) {
      CAPTURE(principles.consecutive);
      CAPTURE(principles.uniform);
      options.principles = principles;
      const double best = shortest(given, costs, options.schedule, principles);
      const auto found = hetauto(given.hardware, costs, given.problem, options);
      const double worth = found ? found->predicted.iteration_s : infinity;
      if (found) {
        CHECK(worth == doctest::Approx(best).epsilon(1e-12));
        CHECK(found->evidence->sum_bound == worth);
        CHECK(found->evidence->objective_bound <= worth);
        ++plans;
      } else {
        CHECK(best == infinity);
      }
      if (principles.consecutive && principles.uniform) with_all = worth;
      CHECK(worth <= with_all);
      better += worth < with_all ? 1 : 0;
    }
  }
  if (sanitizer_share == 1) {
    CHECK(plans > 50);
    CHECK(better > 5);
  }
}

TEST_CASE("hetauto's closed form is no more than what evaluate says, and near it; small changes make no plan worse") {
  random_source random(31);
  int improved = 0;
  for (const std::string schedule : {"virtual_1f1b", "exact_1f1b", "1f1b", "zb_h1"}) {
    CAPTURE(schedule);
    double ratios = 0;
    int finite = 0;
    for (int i = 0; i < 100 / search_share; ++i) {
      instance_limits limits;
      limits.layers = 10;
      limits.subclusters = 3;
      limits.devices = 6;
      auto given = random_instance(random, limits);
      enrich(given, random);
      const opaque_costs costs{given.costs};
      INFO(text(given));
      const auto judge = [&](const detail::interop_problem& placed, const auto& table) -> outcome<plan> {
        const detail::hetauto_decisions decisions(given.hardware, costs, placed, table, given.problem, schedule_named(schedule),
                                                  {random.integer(0, 1) == 0, random.integer(0, 1) == 0});
        for (int leaf = 0; leaf < 20; ++leaf) {
          auto at = decisions.root();
          const int by_hand = random.integer(0, 12);
          for (int step = 0; !decisions.finished(at); ++step) {
            if (step == by_hand) at = decisions.play_out(at, random);
            if (decisions.finished(at)) break;
            const auto next = decisions.actions(at);
            if (next.empty()) break;
            at = decisions.apply(at, next[static_cast<std::size_t>(random.integer(0, static_cast<int>(next.size()) - 1))]);
          }
          if (!decisions.finished(at)) continue;
          CHECK(at.layers_used == given.costs.layers);
          const double least = decisions.chains().floor(at), cost = decisions.cost(at);
          CHECK(least <= cost);
          CHECK(decisions.bound(at) <= cost);
          if (!(cost < infinity) || cost == 0) continue;
          ratios += least / cost;
          ++finite;
          if (leaf > 4) continue;
          const auto better = decisions.improve(at, cost);
          REQUIRE(decisions.finished(better));
          CHECK(better.layers_used == given.costs.layers);
          CHECK(decisions.cost(better) <= cost);
          improved += decisions.cost(better) < cost ? 1 : 0;
        }
        return refusal{refusal::kind::stopped, ""};
      };
      price_book book(given.hardware, costs);
      static_cast<void>(detail::with_tables(book, judge));
    }
    if (sanitizer_share > 1) continue;
    CHECK(finite > 200);
    CAPTURE(ratios / finite);
    CHECK(ratios / finite > (schedule == "virtual_1f1b" ? 0.95 : 0.5));
  }
  if (sanitizer_share == 1) CHECK(improved > 10);
}
