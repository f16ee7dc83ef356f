// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include <hetsched/planners/parallel_pipelines.hpp>

#include "../interop_dp/plan_checks.hpp"
#include "brute_sets.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

parallel_pipelines_options as_parallel(const interop_options& o) { return {.warmup = o.warmup, .epsilon = o.epsilon, .gap = 0}; }

brute_force_options as_brute(const instance& i) {
  return {.rule = i.options.warmup, .microbatches = i.problem.microbatches, .epsilon = i.options.epsilon};
}

std::vector<int> devices_of(const cluster& hardware) {
  std::vector<int> devices;
  for (const auto& s : hardware.subclusters) devices.push_back(s.device_count());
  return devices;
}

/// That a plan is evaluate's, uses no device twice, does all microbatches and fits.
template <class Costs>
void check(const instance& given, const Costs& costs, const plan& p) {
  REQUIRE(p.planner == "parallel_pipelines");
  REQUIRE(microbatch_count(p) == given.problem.microbatches);
  const auto again = evaluate(given.hardware, costs, p, {.epsilon = given.options.epsilon});
  REQUIRE(again);
  REQUIRE(again->shortage == "");
  REQUIRE(again->plan.predicted.iteration_s == p.predicted.iteration_s);
  REQUIRE(p.evidence);
  REQUIRE(p.evidence->objective_value == p.predicted.iteration_s);
  REQUIRE(p.evidence->objective_bound <= p.predicted.iteration_s);
  std::set<std::pair<int, int>> used;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices)
        for (int d = 0; d < g.mesh.device_count(); ++d) REQUIRE(used.insert({g.mesh.subcluster, g.first_device + d}).second);
}

/// Reductions that take time: a price per layer and holder, dearer between subclusters.
template <class Costs>
struct with_reductions : Costs {
  double each_s = 0, across_s = 0;
  [[nodiscard]] reduction_cost gradient_sync(layer_range range, std::span<const placement> holders) const {
    if (holders.size() < 2) return {};
    bool across = false;
    for (const auto& h : holders) across = across || h.mesh.subcluster != holders.front().mesh.subcluster;
    const double n = static_cast<double>(holders.size());
    return {range.size() * (across ? across_s : each_s) * (n - 1) / n, range.size()};
  }
};

/// Least iteration over all sets of pipelines whose reductions take time, by trying all of them.
template <class Costs>
double all_sets(const instance& given, const Costs& costs) {
  struct line {
    bare_plan times;
    std::vector<int> used;
    std::vector<placement> where;
    std::vector<layer_range> layers;
  };
  std::vector<line> lines;
  const int layers = cost_of::layer_count(costs);
  // All pipelines, by cuts and placements.
  std::vector<placement> places;
  for (std::size_t k = 0; k < given.hardware.subclusters.size(); ++k)
    for (const auto& mesh : submeshes(given.hardware.subclusters[k], static_cast<int>(k)))
      for (const auto& p : cost_of::placements(costs, mesh)) places.push_back(p);
  const auto room_of = [&](const placement& p) {
    return room(static_cast<double>(subcluster_of(given.hardware, p.mesh).device.memory_bytes), cost_of::overheads(costs, p));
  };
  const auto devices = devices_of(given.hardware);
  line now;
  now.used.assign(devices.size(), 0);
  std::vector<int> visited;
  const std::function<void(int)> grow = [&](int first) {
    if (first == layers) {
      lines.push_back(now);
      return;
    }
    for (const auto& p : places) {
      const auto k = static_cast<std::size_t>(p.mesh.subcluster);
      const bool enters = visited.empty() || visited.back() != p.mesh.subcluster;
      if (enters && std::find(visited.begin(), visited.end(), p.mesh.subcluster) != visited.end()) continue;
      if (now.used[k] + p.mesh.device_count() > devices[k]) continue;
      const auto before = now;
      if (enters) visited.push_back(p.mesh.subcluster);
      if (first > 0) now.times.transfer.push_back(cost_of::transfer(costs, first - 1, now.where.back(), p));
      now.used[k] += p.mesh.device_count();
      now.where.push_back(p);
      const auto entered = now;
      for (int last = first + 1; last <= layers; ++last) {
        const auto c = cost_of::stage(costs, {first, last}, p);
        const int cap = room_of(p).cap(c, given.problem.microbatches);
        if (cap < 1) continue;
        now.times.compute.push_back(c.total_s());
        now.times.forward.push_back(c.forward_s);
        now.times.update.push_back(cost_of::update(costs, layer_range{first, last}, p));
        now.times.caps.push_back(cap);
        now.layers.push_back({first, last});
        if (now.times.slowest() < never) grow(last);
        now = entered;
      }
      now = before;
      if (enters) visited.pop_back();
    }
  };
  grow(0);

  // Ends of the stages of each, by microbatches.
  const auto ends = [&](const line& l, int m) -> std::vector<double> {
    const auto period = least_period_of(given.options.warmup, l.times, m, given.options.epsilon);
    if (!period) return {};
    auto counts = counts_at(given.options.warmup, l.times, *period, given.options.epsilon);
    pipeline bare;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = std::min(counts[i], m);
      bare.forward_s.push_back(l.times.forward[i]);
      bare.backward_s.push_back(l.times.compute[i] - l.times.forward[i]);
      if (i + 1 == counts.size()) break;
      bare.transfer_s.push_back(l.times.transfer[i].forward_s);
      bare.gradient_transfer_s.push_back(l.times.transfer[i].backward_s);
    }
    return stage_ends(bare, counts, m);
  };
  double best = never;
  std::vector<std::pair<const line*, std::vector<double>>> set;
  const auto judge = [&] {
    // From the last layer to the first: a reduction begins when all that hold the layers are free.
    std::vector<std::size_t> at;
    for (const auto& [l, free] : set) at.push_back(l->layers.size() - 1);
    auto free = set;
    for (int last = layers; set.size() > 1 && last > 0;) {
      int first = 0;
      double start = 0;
      std::vector<placement> holders;
      for (std::size_t i = 0; i < set.size(); ++i) {
        first = std::max(first, set[i].first->layers[at[i]].first);
        start = std::max(start, free[i].second[at[i]]);
        holders.push_back(set[i].first->where[at[i]]);
      }
      const double end = start + cost_of::gradient_sync(costs, layer_range{first, last}, holders).seconds;
      for (std::size_t i = 0; i < set.size(); ++i) {
        free[i].second[at[i]] = end;
        if (set[i].first->layers[at[i]].first == first && first > 0) --at[i];
      }
      last = first;
    }
    double done = 0;
    for (const auto& [l, own] : free)
      for (std::size_t i = 0; i < own.size(); ++i) done = std::max(done, own[i] + l->times.update[i]);
    best = std::min(best, done);
  };
  auto left = devices;
  const std::function<void(std::size_t, int)> add = [&](std::size_t from, int microbatches) {
    if (microbatches == 0) return judge();
    for (std::size_t i = from; i < lines.size(); ++i) {
      bool fits = true;
      for (std::size_t k = 0; k < left.size(); ++k) fits = fits && lines[i].used[k] <= left[k];
      if (!fits) continue;
      for (std::size_t k = 0; k < left.size(); ++k) left[k] -= lines[i].used[k];
      for (int own = 1; own <= microbatches; ++own) {
        auto e = ends(lines[i], own);
        if (e.empty() || *std::max_element(e.begin(), e.end()) * (1 - 1e-9) >= best) continue;
        set.push_back({&lines[i], std::move(e)});
        add(i, microbatches - own);
        set.pop_back();
      }
      for (std::size_t k = 0; k < left.size(); ++k) left[k] += lines[i].used[k];
    }
  };
  add(0, given.problem.microbatches);
  return best;
}

}  // namespace

TEST_CASE("of all sets of pipelines, the fastest: 2,000 small clusters") {
  random_source random(4101);
  int feasible = 0, several = 0, better = 0;
  for (int n = 0; n < 2000 / (sanitizer_share * sanitizer_share); ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, n % 8 == 0 ? 64 : 12);
    // Updates wait for reductions, also for those that take no time: without them pipelines share nothing.
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices_of(given.hardware));
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    REQUIRE(found.has_value() == (least < never));
    if (!found) {
      REQUIRE(!found.why_not().reason.empty());
      continue;
    }
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(least);
    REQUIRE(near(found->predicted.iteration_s, least));
    REQUIRE(found->evidence->complete);
    several += found->pipelines.size() > 1;
    if (n % 4 == 0)
      better += found->predicted.iteration_s <
                interop_dp(given.hardware, costs, given.problem, given.options)->predicted.iteration_s * 0.999;
  }
  constexpr int some = 2000 / (sanitizer_share * sanitizer_share);
  CHECK(feasible > some / 2);
  CHECK(several > some / 5);
  CHECK(better > some / 20);
}

TEST_CASE("reductions between pipelines count: of all sets, the fastest") {
  random_source random(4102);
  int feasible = 0, several = 0, complete = 0;
  for (int n = 0; n < 600 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 3, .subclusters = 2, .devices = 2});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, 8);
    INFO(text(given));
    with_reductions<additive_costs> costs{{given.costs}, 0, 0};
    if (given.costs.rows.empty()) continue;
    const double scale = sum_of_layers(costs, {0, given.costs.layers}, given.costs.rows[0].where).total_s();
    costs.each_s = random.uniform(0, 0.5) * scale;
    costs.across_s = costs.each_s * random.uniform(1, 5);
    CAPTURE(costs.each_s);
    CAPTURE(costs.across_s);
    const double least = all_sets(given, costs);
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, as_parallel(given.options));
    REQUIRE(found.has_value() == (least < never));
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->predicted.iteration_s);
    CAPTURE(least);
    REQUIRE(near(found->predicted.iteration_s, least));
    REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
    complete += found->evidence->complete;
    several += found->pipelines.size() > 1;
  }
  MESSAGE(feasible << " feasible, " << several << " of several pipelines, " << complete << " complete");
  CHECK(several > 100 / sanitizer_share);
  CHECK(complete == feasible);
}

TEST_CASE("without counting, no bound lies above the best set") {
  random_source random(4103);
  int feasible = 0, close = 0;
  double worst = 1;
  for (int n = 0; n < 400 / (sanitizer_share * sanitizer_share); ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, n % 8 == 0 ? 64 : 12);
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto devices = devices_of(given.hardware);
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::periods).least(devices);
    const double played = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices);
    auto options = as_parallel(given.options);
    options.listed = 0;
    const auto found = parallel_pipelines(given.hardware, costs, given.problem, options);
    REQUIRE(found.has_value() == (played < never));
    if (!found) continue;
    ++feasible;
    check(given, costs, *found);
    CAPTURE(found->evidence->objective_bound);
    REQUIRE(found->evidence->objective_bound <= std::max(least, found->predicted.iteration_s) * (1 + 1e-9));
    const auto one = interop_dp(given.hardware, costs, given.problem, given.options);
    if (one) REQUIRE(found->predicted.iteration_s <= one->predicted.iteration_s * (1 + 1e-9));
    close += found->predicted.iteration_s <= played * 1.02;
    worst = std::max(worst, found->predicted.iteration_s / played);
  }
  MESSAGE(close << " of " << feasible << " within 2 % of the best set; worst " << worst);
  CHECK(close > feasible * 3 / 4);
}

TEST_CASE("stopped at any time there is a plan, more steps never make it worse, and the bound is one") {
  random_source random(4104);
  int feasible = 0, incomplete = 0;
  for (int n = 0; n < 120 / sanitizer_share; ++n) {
    CAPTURE(n);
    auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4});
    given.problem.use_all_devices = false;
    given.problem.microbatches = random.integer(1, 16);
    for (auto& r : given.costs.rows) r.update_s = 0;
    INFO(text(given));
    const additive_costs costs{given.costs};
    auto options = as_parallel(given.options);
    if (n % 2 == 0) options.listed = 0;
    const auto whole = parallel_pipelines(given.hardware, costs, given.problem, options);
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices_of(given.hardware));
    double before = never;
    for (const int calls : {0, 1, 2, 5, 20, 100}) {
      CAPTURE(calls);
      int asked = 0;
      auto problem = given.problem;
      problem.progress = [&](const search_progress&) { return asked++ < calls; };
      const auto found = parallel_pipelines(given.hardware, costs, problem, options);
      REQUIRE(found.has_value() == whole.has_value());
      if (!found) break;
      check(given, costs, *found);
      REQUIRE(found->predicted.iteration_s <= before);
      before = found->predicted.iteration_s;
      if (options.listed > 0) REQUIRE(found->evidence->objective_bound <= least * (1 + 1e-9));
      incomplete += !found->evidence->complete;
    }
    feasible += whole.has_value();
  }
  CHECK(feasible > 60 / sanitizer_share);
  CHECK(incomplete > 60 / sanitizer_share);
}
