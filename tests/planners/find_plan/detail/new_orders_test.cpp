// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/find_plan/detail/new_orders.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/find_plan.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/work_bound.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>

#include "../../../sanitizer_share.hpp"

using namespace hetsched;
using hetsched::test::sanitizer_share;

namespace {

/// Single devices of two kinds, whose links are slow.
cluster singles() {
  cluster c;
  c.subclusters.push_back({"t", *find_device("T4"), 2, 1, {5e-6, 8e9}, {30e-6, 25e9 / 8}});
  c.subclusters.push_back({"r", *find_device("RTX3090"), 2, 1, {5e-6, 8e9}, {30e-6, 25e9 / 8}});
  c.links.push_back({0, 1, {50e-6, 25e9 / 8}});
  return c;
}

transformer small_model() { return gpt({.layers = 10, .hidden = 1536, .heads = 12, .vocab = 32000, .sequence = 1024}); }

bool is_whole(const plan& p) {
  return std::none_of(p.pipelines.begin(), p.pipelines.end(),
                      [](const auto& line) { return line.schedule.actions && detail::splits_backwards(*line.schedule.actions); });
}

bool all_run(const plan& p, std::string_view name) {
  return std::all_of(p.pipelines.begin(), p.pipelines.end(), [&](const auto& line) { return line.schedule.name == name; });
}

}  // namespace

TEST_CASE("where nobody asks for an order, one of whole backwards is taken that is shorter") {
  int taken = 0;
  for (const int batch : sanitizer_share > 1 ? std::vector{8} : std::vector{6, 8, 12}) {
    CAPTURE(batch);
    const auto hardware = singles();
    const auto model = small_model();
    std::vector<plan> met;
    plan_request request{.global_batch = batch};
    request.met = [&](const plan& p) { met.push_back(p); };
    const auto found = find_plan(hardware, model, request);
    REQUIRE(found);
    CHECK(is_whole(*found));
    REQUIRE(found->evidence);
    CHECK(found->evidence->objective_value == objective_of(*found));
    // As evaluate and whoever reads the plan have it.
    const auto again = evaluate(hardware, training_costs(hardware, model, {.batch = batch}), *found);
    REQUIRE(again);
    CHECK(again->shortage.empty());
    CHECK(again->plan.predicted.iteration_s == doctest::Approx(objective_of(*found)));
    CHECK(std::any_of(met.begin(), met.end(), [&](const plan& p) { return p.pipelines == found->pipelines; }));
    double of_family = infinity;  // of all plans of the planner's own orders that the search ends with
    for (const auto& p : met)
      if (!all_run(p, auto_schedule_name)) of_family = std::min(of_family, objective_of(p));
    CHECK(objective_of(*found) <= of_family);
    if (!all_run(*found, auto_schedule_name)) continue;
    ++taken;
    CHECK(objective_of(*found) <= 0.995 * of_family);
    // Not for those who ask for a rule, nor for a program that runs no such order.
    auto ruled = request;
    ruled.how.warmup = warmup_rule::one_f_one_b;
    CHECK(all_run(*find_plan(hardware, model, ruled), "1f1b"));
    if (taken > 1) continue;
    auto aimed = request;
    aimed.target = *find_plan_target("megatron");
    const auto runs = find_plan(hardware, model, aimed);
    REQUIRE(runs);
    CHECK_FALSE(all_run(*runs, auto_schedule_name));
  }
  CHECK(taken > 0);
}

TEST_CASE("under auto a plan is no longer than the planner's own one in the best order, and is beside a bound for such orders") {
  const auto hardware = singles();
  const auto model = small_model();
  const auto costs = training_costs(hardware, model, {.batch = 6});
  plan_request request{.global_batch = 6};
  const auto plain = find_plan(hardware, costs, request);
  REQUIRE(plain);
  const auto ordered = plan_under_schedule(hardware, costs, *plain, "auto", {}, false);
  REQUIRE(ordered);
  request.schedule = "auto";
  std::vector<double> bounds;
  double least = infinity;
  for (const auto* planner : {"parallel_pipelines", "interop_dp", "hetauto_exact"}) {
    CAPTURE(planner);
    std::vector<plan> met;
    request.met = [&](const plan& p) { met.push_back(p); };
    const auto found = find_plan(hardware, costs, request, planner_named(planner));
    REQUIRE(found);
    CHECK(std::all_of(met.begin(), met.end(), [](const plan& p) { return all_run(p, auto_schedule_name); }));
    CHECK(std::any_of(met.begin(), met.end(), [&](const plan& p) { return p.pipelines == found->pipelines; }));
    REQUIRE(found->evidence);
    CHECK(found->evidence->objective_value == objective_of(*found));
    CHECK(found->evidence->objective_bound > 0.5 * objective_of(*found));
    bounds.push_back(found->evidence->objective_bound);
    least = std::min(least, objective_of(*found));
    if (planner != std::string("parallel_pipelines")) continue;
    CHECK_FALSE(is_whole(*found));
    CHECK(objective_of(*found) <= 1.001 * objective_of(*ordered));
    CHECK(objective_of(*found) < 0.98 * objective_of(*plain));
    // No cut is better a layer further.
    for (std::size_t l = 0; l < found->pipelines.size(); ++l)
      for (std::size_t i = 0; i + 1 < found->pipelines[l].stages.size(); ++i)
        for (const int step : {1, -1}) {
          auto moved = *found;
          auto& line = moved.pipelines[l];
          line.stages[i + 1].layers.first = line.stages[i].layers.last += step;
          if (line.stages[i].layers.size() < 1 || line.stages[i + 1].layers.size() < 1) continue;
          line.boundaries.clear();
          line.schedule.actions.reset();
          for (auto& s : line.stages) s.warmup = 0;
          const auto other = evaluate(hardware, costs, moved);
          if (other && other->shortage.empty()) CHECK(objective_of(other->plan) > 0.998 * objective_of(*found));
        }
  }
  for (const double bound : bounds) CHECK(bound <= least);
  // Nobody waits for weight gradients: a microbatch alone is done sooner than all its parts one after the other.
  price_book book(hardware, costs(6));
  auto go_on = [] { return true; };
  CHECK(detail::work_bound(book, 1, go_on, false) < 0.9 * detail::work_bound(book, 1, go_on));
  // A search that is ended at once has a plan of such an order all the same.
  request.go_on = [] { return false; };
  request.met = {};
  const auto soon = find_plan(hardware, costs, request);
  REQUIRE(soon);
  CHECK(all_run(*soon, auto_schedule_name));
  CHECK(soon->evidence->stopped);
}

TEST_CASE("a search for a schedule that is ended has a plan under it that fits, or says that it was stopped") {
  auto small = singles();
  for (auto& s : small.subclusters)
    s.device.memory_bytes = static_cast<bytes_t>(0.28 * static_cast<double>(s.device.memory_bytes));
  for (const int asks : {0, 10, 100, 1000}) {
    CAPTURE(asks);
    int asked = 0;
    plan_request request{.global_batch = 12, .schedule = "zb_h1"};
    request.go_on = [&] { return asked++ < asks; };
    const auto found = find_plan(small, small_model(), request);
    if (found) {
      CHECK(all_run(*found, "zb_h1"));
      CHECK(evaluate(small, training_costs(small, small_model(), {.batch = 12}), *found)->shortage.empty());
    } else {
      CHECK(found.why_not().why == refusal::kind::stopped);
    }
  }
}

TEST_CASE("pipelines that are alike run the same order, and are cut alike") {
  auto hardware = singles();
  hardware.links.clear();
  hardware.subclusters.pop_back();
  hardware.subclusters[0].nodes = 8;
  const auto model = small_model();
  const auto costs = training_costs(hardware, model, {.batch = 12});
  const int layers = costs(1).layer_count();
  plan p;
  for (int l = 0; l < 2; ++l) {
    pipeline_plan line{.microbatches = 6, .schedule = {.name = "auto"}};
    for (int i = 0; i < 4; ++i)
      line.stages.push_back({.layers = {i * layers / 4, (i + 1) * layers / 4}, .devices = {{{0, 1, 1}, 4 * l + i}}});
    p.pipelines.push_back(line);
  }
  const auto judged = evaluate(hardware, costs, p);
  REQUIRE(judged);
  REQUIRE(judged->shortage.empty());
  const auto& lines = judged->plan.pipelines;
  CHECK(lines[0].schedule == lines[1].schedule);
  // As each would have it alone.
  auto alone = p;
  alone.pipelines.erase(alone.pipelines.begin());
  CHECK(evaluate(hardware, costs, alone)->plan.pipelines[0].schedule == lines[1].schedule);
  CHECK(detail::first_alike(judged->plan) == std::vector<std::size_t>{0, 0});
  detail::price_books books(hardware, costs);
  auto go_on = [] { return true; };
  const auto cuts = detail::recut(books, judged->plan, go_on);
  REQUIRE_FALSE(cuts.empty());
  for (const auto& candidate : cuts)
    for (std::size_t i = 0; i < 4; ++i) CHECK(candidate.pipelines[0].stages[i].layers == candidate.pipelines[1].stages[i].layers);
  const auto whole = detail::with_whole_orders(hardware, costs, judged->plan, infinity, {});
  REQUIRE(whole);
  CHECK(is_whole(*whole));
  CHECK(whole->pipelines[0].schedule == whole->pipelines[1].schedule);
  CHECK_FALSE(detail::with_whole_orders(hardware, costs, judged->plan, objective_of(*whole), {}));
  // Other microbatches, another order.
  p.pipelines[1].microbatches = 5;
  const auto unlike = evaluate(hardware, costs, p);
  REQUIRE(unlike);
  CHECK(detail::first_alike(unlike->plan) == std::vector<std::size_t>{0, 1});
  CHECK(unlike->plan.pipelines[1].schedule.actions->microbatches == 5);
}

TEST_CASE("a rule of warm-ups that is asked for as a schedule is what the search plans for") {
  const auto hardware = singles();
  const auto model = small_model();
  plan_request as_schedule{.global_batch = 8, .schedule = "eager_1f1b"}, as_rule{.global_batch = 8};
  as_rule.how.warmup = warmup_rule::eager;
  const auto found = find_plan(hardware, model, as_schedule), same = find_plan(hardware, model, as_rule);
  REQUIRE(found);
  REQUIRE(same);
  CHECK(found->pipelines == same->pipelines);
  CHECK(found->evidence->objective_bound == same->evidence->objective_bound);
  CHECK(found->evidence->rule == "eager_1f1b");
}

TEST_CASE("schedules that hold more microbatches have plans of other stages where the best ones of 1F1B lack memory") {
  if (sanitizer_share > 1) return;  // searches that other cases run
  int roomier = 0;
  // dualpipe is for an even number of ranks, and one of these devices by itself has more room than planners know of.
  using named = std::pair<double, const char*>;
  for (const auto& [part, schedule] : {named{0.28, "zb_h1"}, named{0.28, "zb_h2"}, named{0.4, "dualpipe"}}) {
    CAPTURE(part);
    CAPTURE(schedule);
    auto small = singles();
    for (auto& s : small.subclusters)
      s.device.memory_bytes = static_cast<bytes_t>(part * static_cast<double>(s.device.memory_bytes));
    const auto model = small_model();
    const auto costs = training_costs(small, model, {.batch = 12});
    plan_request request{.global_batch = 12};
    std::vector<plan> met;
    request.met = [&](const plan& p) { met.push_back(p); };
    const auto plain = find_plan(small, costs, request);
    REQUIRE(plain);
    double known = infinity;  // of what the search without a schedule ends with
    for (const auto& p : met)
      if (const auto other = plan_under_schedule(small, costs, p, schedule, {}, false))
        known = std::min(known, objective_of(*other));
    request.met = {};
    request.schedule = schedule;
    const auto found = find_plan(small, costs, request);
    CHECK((found || known == infinity));
    roomier += found && !plan_under_schedule(small, costs, *plain, schedule, {}, false);
    if (!found) continue;
    CHECK(all_run(*found, schedule));
    CHECK(evaluate(small, costs, *found)->shortage.empty());
    CHECK(objective_of(*found) <= 1.001 * known);
    CHECK((found->evidence->objective_bound > 0) == (schedule != std::string("dualpipe")));
  }
  CHECK(roomier > 0);
}
