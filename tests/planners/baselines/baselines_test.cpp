// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/baselines.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>

#include "../interop_dp/plan_checks.hpp"
#include "../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Devices one behind the other, as (subcluster, device).
std::vector<std::pair<int, int>> devices_in(const cluster& hardware, const std::vector<int>& order) {
  std::vector<std::pair<int, int>> all;
  for (const int k : order)
    for (int d = 0; d < hardware.subclusters[static_cast<std::size_t>(k)].device_count(); ++d) all.emplace_back(k, d);
  return all;
}

/// The devices [first, first + count) of a line as a group, if a stage may lie there; else one of no devices.
device_group group_of(const cluster& hardware, const std::vector<std::pair<int, int>>& line, int first, int count) {
  const auto [k, d] = line[static_cast<std::size_t>(first)];
  const auto [last_k, last_d] = line[static_cast<std::size_t>(first + count - 1)];
  const int per_node = hardware.subclusters[static_cast<std::size_t>(k)].devices_per_node;
  if (last_k != k) return {{k, 0, 0}, 0};
  if (d / per_node == last_d / per_node) return {{k, 1, count}, d};
  if (d % per_node != 0 || count % per_node != 0) return {{k, 0, 0}, 0};
  return {{k, count / per_node, per_node}, d};
}

/// Calls what(pipelines without layers, stages) for all devices in equal stages, in every way.
void for_each_grid(const instance& given, const std::function<void(std::vector<pipeline_plan>, int)>& what) {
  const auto& hardware = given.hardware;
  const int devices = hardware.device_count(), microbatches = given.problem.microbatches;
  std::vector<int> order(hardware.subclusters.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    const auto line = devices_in(hardware, order);
    for (int each = 1; each <= devices; ++each)
      for (int pipelines = 1; pipelines <= std::min(devices, microbatches); ++pipelines)
        for (const bool replicas_first : {true, false}) {
          if (devices % (each * pipelines) != 0 || microbatches % pipelines != 0) continue;
          const int stages = devices / each / pipelines;
          if (stages > given.costs.layers) continue;
          std::vector<pipeline_plan> lines(
              static_cast<std::size_t>(pipelines),
              {.microbatches = microbatches / pipelines, .microbatch_size = given.problem.microbatch_size});
          bool possible = true;
          for (int i = 0; i < stages; ++i)
            for (int r = 0; r < pipelines; ++r) {
              const int at = replicas_first ? i * pipelines + r : r * stages + i;
              const auto group = group_of(hardware, line, at * each, each);
              possible = possible && group.mesh.device_count() > 0;
              lines[static_cast<std::size_t>(r)].stages.push_back({.devices = {group}});
            }
          if (!possible) continue;
          for (const auto& like : given.costs.rows) {
            if (!(like.where.mesh == lines[0].stages[0].devices[0].mesh)) continue;
            auto placed = lines;
            bool offered = true;
            for (auto& own : placed)
              for (auto& s : own.stages) {
                s.degrees = like.where.degrees;
                s.recompute = like.where.recompute;
                s.zero = like.where.zero;
                const auto known = given.costs.placements(s.devices[0].mesh);
                offered = offered && std::count(known.begin(), known.end(), s.where()) > 0;
              }
            if (offered) what(std::move(placed), stages);
          }
        }
  } while (std::next_permutation(order.begin(), order.end()));
}

/// The iteration of these pipelines with stages that begin at the cuts, under the exact rule or, if that does not fit, 1F1B's;
/// never where nothing fits.
template <class Costs>
double judged(const instance& given, const Costs& costs, std::vector<pipeline_plan> lines, const std::vector<int>& cuts) {
  for (auto& own : lines)
    for (std::size_t i = 0; i < own.stages.size(); ++i) own.stages[i].layers = {cuts[i], cuts[i + 1]};
  for (const char* rule : {"exact_1f1b", "1f1b"}) {
    for (auto& own : lines) own.schedule.name = rule;
    const auto found = evaluate(given.hardware, costs, {.pipelines = lines});
    if (!found) return never;
    if (found->shortage.empty()) return found->plan.predicted.iteration_s;
  }
  return never;
}

template <class Costs>
double best_uniform(const instance& given, const Costs& costs) {
  double least = never;
  for_each_grid(given, [&](const std::vector<pipeline_plan>& lines, int stages) {
    for (const int ends : {0, 1}) {
      const int inner = costs.layers - 2 * ends;
      if (inner < stages) continue;
      std::vector<int> cuts{0};
      for (int i = 1; i < stages; ++i) cuts.push_back(ends + inner * i / stages);
      cuts.push_back(costs.layers);
      least = std::min(least, judged(given, costs, lines, cuts));
    }
  });
  return least;
}

instance small_instance(random_source& random, int n) {
  auto given = random_instance(random, {.layers = 6, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
  given.problem.use_all_devices = false;
  given.problem.microbatches = random.integer(1, 3) * random.integer(1, 4);
  if (n % 4 == 1) share_parameters(given, random);
  if (n % 4 == 2) enrich(given, random);
  for (auto& s : given.hardware.subclusters)  // equal halves often do not fit where the best halves do
    if (n % 2 == 0) s.device.memory_bytes *= 4;
  return given;
}

/// That the plan is evaluate's own, fits, and has all devices and samples.
template <class Costs>
void check_baseline(const instance& given, const Costs& costs, const plan& found) {
  const auto again = evaluate(given.hardware, costs, found);
  REQUIRE(again);
  CHECK(again->shortage.empty());
  CHECK(again->plan.pipelines == found.pipelines);
  CHECK(again->plan.predicted == found.predicted);
  CHECK(microbatch_count(found) == given.problem.microbatches);
  int devices = 0;
  for (const auto& line : found.pipelines)
    for (const auto& s : line.stages) devices += device_count(s.devices);
  CHECK(devices == given.hardware.device_count());
}

}  // namespace

TEST_CASE("uniform: the best of all degrees, ranks, orders and ways to save memory, by brute force through evaluate") {
  random_source random(4501);
  int feasible = 0, several = 0, staged = 0;
  for (int n = 0; n < 400 / sanitizer_share; ++n) {
    CAPTURE(n);
    const auto given = small_instance(random, n);
    INFO(text(given));
    const auto compare = [&](const auto& costs) {
      const double least = best_uniform(given, costs);
      const auto found = uniform_pipelines(given.hardware, costs, given.problem);
      REQUIRE(found.has_value() == (least < never));
      if (!found) {
        CHECK_FALSE(found.why_not().reason.empty());
        return;
      }
      ++feasible;
      several += found->pipelines.size() > 1;
      staged += found->pipelines.front().stages.size() > 1;
      CHECK(near(found->predicted.iteration_s, least));
      check_baseline(given, costs, *found);
      for (const auto& line : found->pipelines) {
        CHECK(line.microbatches == found->pipelines.front().microbatches);
        for (const auto& s : line.stages) CHECK(s.degrees == found->pipelines.front().stages.front().degrees);
      }
    };
    if (n % 5 == 0)
      compare(random_intervals(random, given.costs));
    else
      compare(additive_costs{given.costs});
  }
  CHECK(feasible > 150 / sanitizer_share);
  CHECK(several > 20 / sanitizer_share);
  CHECK(staged > 50 / sanitizer_share);
}

TEST_CASE("uniform is never better than parallel_pipelines, whose space has its plans, and mostly worse") {
  random_source random(4502);
  int feasible = 0, worse = 0;
  for (int n = 0; n < 120 / sanitizer_share; ++n) {
    CAPTURE(n);
    const auto given = small_instance(random, n);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto found = uniform_pipelines(given.hardware, costs, given.problem);
    if (!found) continue;
    ++feasible;
    const auto best = parallel_pipelines(given.hardware, costs, given.problem);
    REQUIRE(best);
    CHECK(best->predicted.iteration_s <= found->predicted.iteration_s * (1 + 1e-9));
    worse += best->predicted.iteration_s < found->predicted.iteration_s * 0.99;
  }
  CHECK(feasible > 50 / sanitizer_share);
  CHECK(worse > feasible / 2);
}

TEST_CASE("amp: its dynamic program finds the cut of the least sum, and its plans are evaluate's") {
  random_source random(4503);
  int cut = 0, better = 0, feasible = 0;
  for (int n = 0; n < 200 / sanitizer_share; ++n) {
    CAPTURE(n);
    const auto given = small_instance(random, n);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto found = amp(given.hardware, costs, given.problem);
    const auto even = uniform_pipelines(given.hardware, costs, given.problem);
    // Under 1F1B, whose warm-ups are the same in all pipelines, both are of equal_pipelines' space.
    const baseline_options plain{.schedule = "1f1b"};
    const auto equal = equal_pipelines(given.hardware, costs, given.problem, plain);
    for (const auto& less :
         {amp(given.hardware, costs, given.problem, plain), uniform_pipelines(given.hardware, costs, given.problem, plain)})
      if (less) {
        REQUIRE(equal);
        CHECK(equal->predicted.iteration_s <= less->predicted.iteration_s * (1 + 1e-9));
      }
    if (const auto exact = equal_pipelines(given.hardware, costs, given.problem)) CHECK_FALSE(unlike_pipelines(*exact));
    if (!found) continue;
    ++feasible;
    check_baseline(given, costs, *found);
    if (even) better += found->predicted.iteration_s < even->predicted.iteration_s * 0.99;
    // All cuts of its grid, by the sum that it goes by.
    const auto& lines = found->pipelines;
    const int stages = static_cast<int>(lines[0].stages.size()), each = lines[0].microbatches;
    const auto sum_of = [&](const std::vector<int>& cuts) {
      double latency = 0, longest = 0;
      for (int i = 0; i < stages; ++i) {
        double slowest = 0, way = 0;
        const auto at = static_cast<std::size_t>(i);
        for (const auto& line : lines) {
          const auto& s = line.stages[at];
          const auto in_flight = std::min(stages - i, each);
          const auto cost = costs.stage({cuts[at], cuts[at + 1]}, s.where());
          if (!room(static_cast<double>(s.memory_capacity_bytes), costs.overheads(s.where())).holds(cost, in_flight))
            return never;
          slowest = std::max(slowest, cost.total_s());
          if (i + 1 < stages)
            way = std::max(way, cost_of::transfer(costs, cuts[at + 1] - 1, s.where(), line.stages[at + 1].where(),
                                                  share_node(given.hardware, s, line.stages[at + 1]))
                                    .round_trip_s());
        }
        latency += slowest + way;
        longest = std::max(longest, slowest);
      }
      return latency + (each - 1) * longest;
    };
    std::vector<int> own{0};
    for (const auto& s : lines[0].stages) own.push_back(s.layers.last);
    double least = never;
    std::vector<int> cuts(static_cast<std::size_t>(stages + 1), 0);
    cuts.back() = costs.layers;
    const std::function<void(int)> all = [&](int i) {
      if (i == stages) {
        least = std::min(least, sum_of(cuts));
        return;
      }
      for (int c = cuts[static_cast<std::size_t>(i - 1)] + 1; c <= costs.layers - (stages - i); ++c) {
        cuts[static_cast<std::size_t>(i)] = c;
        all(i + 1);
      }
    };
    if (stages > 1) all(1);
    cut += stages > 1;
    if (stages > 1) CHECK(near(sum_of(own), least));
  }
  CHECK(feasible > 100 / sanitizer_share);
  CHECK(cut > 40 / sanitizer_share);
  CHECK(better > 10 / sanitizer_share);
}

TEST_CASE("metis_like and alpa_like: one pipeline on all devices, as evaluate has it; never better than the best pipelines") {
  random_source random(4504);
  int metis = 0, alpa = 0, unlike = 0, better = 0;
  for (int n = 0; n < 120 / sanitizer_share; ++n) {
    CAPTURE(n);
    const auto given = small_instance(random, n);
    INFO(text(given));
    const additive_costs costs{given.costs};
    const auto uniform = uniform_pipelines(given.hardware, costs, given.problem);
    for (const auto& found :
         {metis_like(given.hardware, costs, given.problem), alpa_like(given.hardware, costs, given.problem)}) {
      if (!found) {
        CHECK_FALSE(found.why_not().reason.empty());
        continue;
      }
      const auto& line = found->pipelines.front();
      (found->planner == "metis_like" ? metis : alpa) += 1;
      check_baseline(given, costs, *found);
      CHECK(found->pipelines.size() == 1);
      for (const auto& s : line.stages)
        unlike += s.devices.front().mesh.device_count() != line.stages.front().devices.front().mesh.device_count();
      if (uniform) better += found->predicted.iteration_s < uniform->predicted.iteration_s * 0.99;
      const auto best = parallel_pipelines(given.hardware, costs, given.problem);
      REQUIRE(best);
      CHECK(best->predicted.iteration_s <= found->predicted.iteration_s * (1 + 1e-9));
    }
  }
  CHECK(metis > 40 / sanitizer_share);
  CHECK(alpa > 40 / sanitizer_share);
  CHECK(unlike > 10 / sanitizer_share);
  CHECK(better > 10 / sanitizer_share);
}

TEST_CASE("metis_like gives a stage layers by the speed of its devices; alpa_like takes unlike devices for alike") {
  // Two devices, one three times as fast, and eight equal layers.
  cluster hardware;
  cost_tables tables;
  tables.layers = 8;
  tables.classes = 1;
  for (int k = 0; k < 2; ++k) {
    hardware.subclusters.push_back({k == 0 ? "slow" : "fast", {}, 1, 1, {0, 1e9}, {0, 1e9}});
    hardware.subclusters.back().device = {
        .name = "d", .peak_flops = {1e12, 0, 1e12, 0}, .memory_bytes = 1000, .memory_bandwidth = 1e12};
    const double seconds = k == 0 ? 3 : 1;
    tables.rows.push_back({{.mesh = {k, 1, 1}}, 0, std::vector<stage_cost>(8, {seconds / 3, seconds * 2 / 3, 10, 1})});
  }
  hardware.links.push_back({0, 1, {0, 1e9}});
  tables.prices.resize(7);
  const additive_costs costs{tables};
  const planning_problem problem{.microbatches = 32};
  const auto layers = [](const outcome<plan>& found, std::size_t stage) {
    return found->pipelines.front().stages[stage].layers.size();
  };
  const auto by_speed = metis_like(hardware, costs, problem);
  REQUIRE(by_speed);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(layers(by_speed, i) == (by_speed->pipelines.front().stages[i].devices.front().mesh.subcluster == 0 ? 2 : 6));
  const auto alike = alpa_like(hardware, costs, problem);
  REQUIRE(alike);
  CHECK(layers(alike, 0) == 4);
  CHECK(layers(alike, 1) == 4);
  // Memory: the fast one holds four layers and no more.
  hardware.subclusters[1].device.memory_bytes = 50;
  const auto held = metis_like(hardware, costs, problem);
  REQUIRE(held);
  for (std::size_t i = 0; i < 2; ++i) CHECK(layers(held, i) == 4);
}

TEST_CASE("baselines: one that is stopped says so, and what is asked for is checked") {
  random_source random(4505);
  auto given = small_instance(random, 0);
  while (!uniform_pipelines(given.hardware, additive_costs{given.costs}, given.problem)) given = small_instance(random, 0);
  const additive_costs costs{given.costs};
  for (const auto plan_by : {uniform_pipelines, amp, metis_like, alpa_like}) {
    auto stopped = given.problem;
    stopped.go_on = [] { return false; };
    const auto none = plan_by(given.hardware, costs, stopped, {});
    REQUIRE_FALSE(none);
    CHECK(none.why_not().why == refusal::kind::stopped);
    auto known = given.problem;
    known.beat = 1e-9 * uniform_pipelines(given.hardware, costs, given.problem)->predicted.iteration_s;
    const auto beaten = plan_by(given.hardware, costs, known, {});
    REQUIRE_FALSE(beaten);
    CHECK(beaten.why_not().why == refusal::kind::infeasible);
    auto wrong = given.problem;
    wrong.microbatches = 0;
    CHECK_THROWS_AS(static_cast<void>(plan_by(given.hardware, costs, wrong, {})), input_error);
    CHECK_THROWS_AS(static_cast<void>(plan_by(given.hardware, costs, given.problem, {.epsilon = -1})), input_error);
    CHECK_THROWS_AS(static_cast<void>(plan_by(given.hardware, costs, given.problem, {.schedule = "none"})), input_error);
    for (auto& s : given.hardware.subclusters) s.device.memory_bytes *= 1000;
    const auto other = plan_by(given.hardware, costs, given.problem, {.schedule = "gpipe"});
    REQUIRE(other);
    CHECK(other->pipelines.front().schedule.name == "gpipe");
  }
}
