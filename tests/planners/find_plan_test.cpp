// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/search/microbatch.hpp>

#include "interop_dp/random_instance.hpp"

#include "../sanitizer_share.hpp"

using namespace hetsched;
using hetsched::test::sanitizer_share;

namespace {

cluster two_kinds() {
  cluster c;
  c.subclusters.push_back({"v", *find_device("V100-SXM2-32GB"), 1, 4, {5e-6, 150e9}, {10e-6, 25e9 / 8}});
  c.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 1, 2, {5e-6, 300e9}, {10e-6, 25e9 / 8}});
  c.links.push_back({0, 1, {100e-6, 5e9 / 8}});
  return c;
}

const layer_chain& chain() {
  static const auto made = make_chain(gpt({.layers = 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512}));
  return made;
}

auto costs_on(const cluster& hardware) {
  return [&hardware](int size) {
    return analytic_cost_model(hardware, chain(),
                               {.microbatch_size = size, .recompute = {recomputation::none, recomputation::full}});
  };
}

/// Equal machines of one device, any two of them linked.
cluster machines(int count) {
  cluster c;
  for (int k = 0; k < count; ++k)
    c.subclusters.push_back({"h" + std::to_string(k), *find_device("RTX3090"), 1, 1, {5e-6, 1e9}, {10e-6, 1e9}});
  for (int a = 0; a < count; ++a)
    for (int b = a + 1; b < count; ++b) c.links.push_back({.a = a, .b = b, .link = {1e-3, 1e9 / 8}});
  return c;
}

struct counted_costs : test::additive_costs {
  mutable int layers_asked = 0;
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    ++layers_asked;
    return additive_costs::layer(index, where);
  }
};

/// Costs of tensor parallelism alone, or of single devices.
struct apart_costs : analytic_cost_model {
  bool tensor = false;
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    auto all = analytic_cost_model::placements(mesh);
    std::erase_if(all, [&](const placement& p) { return (p.degrees.tensor > 1) != tensor || p.degrees.data > 1; });
    return all;
  }
};

}  // namespace

TEST_CASE("find_plan is as good as its planner on every microbatch size, and its bound holds for all of them") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  double others = 1e300;
  for (const char* planner : {"interop_dp", "hetauto_exact", "parallel_pipelines"}) {
    CAPTURE(planner);
    constexpr int batch = sanitizer_share > 1 ? 4 : 12;
    const plan_request request{.global_batch = batch, .planner = planner};
    const auto found = find_plan(hardware, costs, request);
    REQUIRE(found);
    CHECK(sample_count(*found) == batch);
    double least = 1e300;
    for (const int size : microbatch_sizes(batch)) {
      const auto own =
          planner_named(planner).make(hardware, any_cost_model::owner_of(costs(size)), problem_of(request, size), {});
      if (own) least = std::min(least, objective_of(*own));
    }
    CHECK(objective_of(*found) <= least * (1 + 1e-9));
    REQUIRE(found->evidence);
    CHECK(found->evidence->objective_bound <= objective_of(*found));
    if (found->evidence->complete) CHECK(least >= found->evidence->objective_bound * (1 - 1e-3));
    // The plan is evaluate's.
    const auto judged = evaluate(hardware, costs, *found);
    REQUIRE(judged);
    CHECK(judged->plan.predicted.iteration_s == found->predicted.iteration_s);
    CHECK(judged->shortage.empty());
    // The last one, the default, is no worse than the others.
    if (planner == planners().front().name) CHECK(objective_of(*found) <= others * (1 + 1e-9));
    others = std::min(others, objective_of(*found));
  }
}

TEST_CASE("find_plan tells what it meets, keeps to one size, and remembers what the costs are of") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  std::vector<int> sizes, told;
  plan_request request{.global_batch = 8, .planner = "interop_dp", .setting = {.costs = "analytic"}};
  request.met = [&](const plan& p) { sizes.push_back(p.pipelines.front().microbatch_size); };
  request.progress = [&](const find_progress& at) { told.push_back(at.microbatch_size); };
  const auto all = find_plan(hardware, costs, request);
  REQUIRE(all);
  CHECK(all->setting.costs == "analytic");
  for (const int size : {1, 2, 4, 8}) CHECK(std::find(sizes.begin(), sizes.end(), size) != sizes.end());
  CHECK_FALSE(told.empty());
  request.microbatch_size = 2;
  sizes.clear();
  const auto one = find_plan(hardware, costs, request);
  REQUIRE(one);
  CHECK(sizes == std::vector{2});
  CHECK(objective_of(*one) >= objective_of(*all) * (1 - 1e-9));
}

TEST_CASE("sizes without costs are left out, and where none has any the reason is told") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  plan_request request{.global_batch = 8, .planner = "interop_dp"};
  request.lacks = [](int size) { return size == 4 ? std::string() : "nobody measured " + std::to_string(size); };
  const auto found = find_plan(hardware, costs, request);
  REQUIRE(found);
  CHECK(found->pipelines.front().microbatch_size == 4);
  // Nor are the other planners, which the default one asks where sends hold ranks up, asked for plans of these sizes.
  auto sent = request;
  sent.planner = {};
  sent.sends = send_mode::blocking;
  const auto of_four = [&](int size) {
    if (size != 4) throw input_error("there are no costs");
    return costs(size);
  };
  CHECK(find_plan(hardware, of_four, sent)->pipelines.front().microbatch_size == 4);
  request.lacks = [](int size) { return "nobody measured " + std::to_string(size); };
  const auto none = find_plan(hardware, costs, request);
  REQUIRE_FALSE(none);
  CHECK(none.why_not().reason == "nobody measured 1");
}

TEST_CASE("the stages run the schedule that is asked for, and are the better for it") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  const auto found = find_plan(hardware, costs, {.global_batch = 8, .microbatch_size = 1, .schedule = "gpipe"});
  REQUIRE(found);
  for (const auto& line : found->pipelines) CHECK(line.schedule.name == "gpipe");
  auto as_planned = *find_plan(hardware, costs, {.global_batch = 8, .microbatch_size = 1});
  for (auto& line : as_planned.pipelines) {
    line.schedule = {.name = "gpipe"};
    for (auto& s : line.stages) s.warmup = 0;
  }
  const auto simply = evaluate(hardware, costs, as_planned);
  REQUIRE(simply);
  CHECK(objective_of(*found) <= objective_of(simply->plan) * (1 + 1e-9));
}

TEST_CASE("over all microbatch sizes a plan is no worse than for one of them, where embeddings are tied over a slow link" *
          doctest::skip(sanitizer_share > 1)) {
  cluster hardware;
  hardware.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 1, 4, {5e-6, 300e9}, {10e-6, 25e9 / 2}});
  hardware.subclusters.push_back({"b", *find_device("V100-SXM2-32GB"), 2, 4, {5e-6, 150e9}, {10e-6, 25e9 / 2}});
  hardware.links.push_back({0, 1, {100e-6, 10e9 / 8}});
  const transformer model{.layers = 28, .hidden = 1536, .heads = 12, .vocab = 151936, .sequence = 2048};
  const auto costs = training_costs(hardware, model, {.batch = 32});
  for (const std::string planner : {"interop_dp", "hetauto_exact"}) {
    CAPTURE(planner);
    const auto best = find_plan(hardware, costs, {.global_batch = 32, .planner = planner});
    REQUIRE(best);
    for (const int size : {1, 2}) {
      const auto own = find_plan(hardware, costs, {.global_batch = 32, .microbatch_size = size, .planner = planner});
      REQUIRE(own);
      CHECK(objective_of(*best) <= objective_of(*own) * 1.001);
    }
  }
}

TEST_CASE("over all microbatch sizes a plan is no worse than for one of them, where few go through many stages" *
          doctest::skip(sanitizer_share > 1)) {
  cluster hardware;
  hardware.subclusters.push_back({"v", *find_device("V100-SXM2-32GB"), 9, 8, {5e-6, 150e9}, {20e-6, 25e9 / 8}});
  const transformer model = gpt({.layers = 32, .hidden = 2560, .heads = 20, .vocab = 50257, .sequence = 2048});
  const auto best = find_plan(hardware, model, {.global_batch = 12});
  const auto own = find_plan(hardware, model, {.global_batch = 12, .microbatch_size = 1});
  REQUIRE(best);
  REQUIRE(own);
  CHECK(objective_of(*best) <= objective_of(*own) * 1.001);
}

TEST_CASE(
    "the default planner is no worse than another where first plans say little: many kinds, few of which are worth their links" *
    doctest::skip(sanitizer_share > 1)) {
  cluster hardware;
  const auto add = [&](const char* device, int nodes, int each, double inside_gbit, double outside_gbit) {
    hardware.subclusters.push_back(
        {device, *find_device(device), nodes, each, {5e-6, inside_gbit * 1e9 / 8}, {20e-6, outside_gbit * 1e9 / 8}});
  };
  add("A10", 1, 8, 256, 100);
  add("V100-SXM2-16GB", 8, 1, 1200, 100);
  add("A100-SXM4-40GB", 15, 1, 1200, 10);
  add("L40S", 2, 8, 64, 25);
  add("T4", 12, 1, 2400, 10);
  add("H100-SXM5-80GB", 10, 1, 64, 200);
  for (int a = 0; a < 6; ++a)
    for (int b = 0; b < a; ++b) {
      const bool fast = (a == 1 && b == 0) || (b == 1 && (a == 2 || a == 4)) || b == 2 || (b > 2 && a == 5);
      hardware.links.push_back({a, b, {50e-6, (fast ? 100e9 : 25e9) / 8}});
    }
  const transformer model{.layers = 32, .hidden = 2560, .heads = 20, .vocab = 32000, .sequence = 4096};
  const auto best = find_plan(hardware, model, {.global_batch = 64});
  const auto one = find_plan(hardware, model, {.global_batch = 64, .microbatch_size = 2, .planner = "interop_dp"});
  REQUIRE(best);
  REQUIRE(one);
  CHECK(objective_of(*best) <= objective_of(*one) * 1.001);
}

TEST_CASE("a schedule that holds all microbatches has a plan where there is room for it on other stages than the best of 1F1B") {
  if (sanitizer_share > 1) return;  // half a minute there, of a search that other cases run
  for (const double part : {0.117, 0.131, 0.147}) {
    CAPTURE(part);
    auto small = two_kinds();
    for (auto& s : small.subclusters)
      s.device.memory_bytes = static_cast<bytes_t>(part * static_cast<double>(s.device.memory_bytes));
    const auto costs = costs_on(small);
    plan_request request{.global_batch = 32, .microbatch_size = 1};
    const auto free = find_plan(small, costs, request);
    REQUIRE(free);
    REQUIRE_FALSE(plan_under_schedule(small, costs, *free, "gpipe", {}, true));
    request.schedule = "gpipe";
    const auto found = find_plan(small, costs, request);
    REQUIRE(found);
    CHECK(found->pipelines[0].schedule.name == "gpipe");
    CHECK(evaluate(small, costs, *found)->shortage.empty());
  }
}

TEST_CASE("a schedule that no number of stages found is for is refused, not an error") {
  auto hardware = machines(1);
  for (const auto* schedule : {"dualpipe", "chimera"}) {
    const auto none = find_plan(hardware, costs_on(hardware), {.global_batch = 8, .microbatch_size = 1, .schedule = schedule});
    REQUIRE_FALSE(none);
    CHECK(none.why_not().why == refusal::kind::infeasible);
    CHECK(none.why_not().reason.find("even number of ranks") != std::string::npos);
  }
}

TEST_CASE("the cheapest plan within a deadline: the fastest one, where a search for cheap ones finds none in time") {
  auto hardware = two_kinds();
  hardware.subclusters[0].device.price_per_hour = 1;
  hardware.subclusters[1].device.price_per_hour = 3;
  const auto costs = costs_on(hardware);
  const planner_entry hasty{
      .name = "hasty",
      .what = "finds no cheap plan in time",
      .make = [](const cluster& c, const any_cost_model& m, const planning_problem& p, const planner_choice&) -> outcome<plan> {
        if (p.objective == plan_objective::cost) return refusal{refusal::kind::infeasible, "too late"};
        return interop_dp(c, m, p);
      }};
  plan_request request{.global_batch = 16};
  const auto fastest = find_plan(hardware, costs, request, hasty);
  REQUIRE(fastest);
  request.objective = plan_objective::cost;
  request.deadline_s = fastest->predicted.iteration_s * 1.01;
  const auto cheap = find_plan(hardware, costs, request, hasty);
  REQUIRE(cheap);
  CHECK(cheap->objective == plan_objective::cost);
  CHECK(cheap->predicted.iteration_s <= request.deadline_s);
  CHECK(*cheap->predicted.cost_per_sample <= *fastest->predicted.cost_per_sample * (1 + 1e-9));
  CHECK(cheap->evidence->objective_value == *cheap->predicted.cost_per_sample);
  CHECK(cheap->evidence->objective_bound == 0);
  request.deadline_s = fastest->predicted.iteration_s * 0.5;
  const auto none = find_plan(hardware, costs, request, hasty);
  REQUIRE_FALSE(none);
  char takes[32];
  std::snprintf(takes, sizeof takes, "takes %.6g s", fastest->predicted.iteration_s);
  CHECK(none.why_not().reason.find(takes) != std::string::npos);
}

TEST_CASE("any number of subclusters: every planner has a plan, or says that it is not made for so many") {
  const auto small = make_chain(gpt({.layers = 3, .hidden = 256, .heads = 4, .vocab = 1000, .sequence = 64}));
  for (const int count : {1, 2, 5, 11, 12, 33}) {
    if (sanitizer_share > 1 && count > 2) break;
    CAPTURE(count);
    const auto hardware = machines(count);
    const auto costs = [&](int size) { return analytic_cost_model(hardware, small, {.microbatch_size = size}); };
    for (const auto& planner : planners()) {
      CAPTURE(planner.name);
      const auto found = find_plan(hardware, costs, {.global_batch = 2}, planner);
      if (planner.name == "hetauto_exact" && count > 10) {
        REQUIRE_FALSE(found);
        CHECK(found.why_not().why == refusal::kind::not_applicable);
      } else {
        REQUIRE(found);
        const auto judged = evaluate(hardware, costs, *found);
        REQUIRE(judged);
        CHECK(judged->shortage.empty());
      }
    }
  }
}

TEST_CASE("a subcluster that no link joins: the reason names the links, and nobody is said to have stopped a search") {
  cluster hardware;
  const int devices = sanitizer_share > 1 ? 1 : 2;
  for (const char* name : {"a", "b", "c"})
    hardware.subclusters.push_back({name, *find_device("A100-SXM4-40GB"), 1, devices, {3e-6, 300e9}, {10e-6, 25e9 / 8}});
  hardware.links.push_back({.a = 0, .b = 1, .link = {1e-3, 10e9 / 8}});
  const auto costs = costs_on(hardware);
  for (const auto& planner : planners()) {
    CAPTURE(planner.name);
    const int size = sanitizer_share > 1 ? 1 : 0;  // all sizes take minutes under a sanitizer
    CHECK(find_plan(hardware, costs, {.global_batch = 4, .microbatch_size = size}, planner));
    const auto none = find_plan(hardware, costs, {.global_batch = 4, .microbatch_size = size, .use_all_devices = true}, planner);
    REQUIRE_FALSE(none);
    CAPTURE(none.why_not().reason);
    CHECK(none.why_not().why == refusal::kind::infeasible);
    CHECK(none.why_not().reason.find("stopped") == std::string::npos);
    const bool several = planner.name == "hexiscale";  // it knows that gradients of several pipelines have no way
    CHECK(none.why_not().reason.find(several ? "no link joins all pipelines" : "no link between a - c, b - c") !=
          std::string::npos);
  }
}

TEST_CASE("a model that fits nowhere: all planners name a layer, a stage or how much memory there is") {
  auto hardware = machines(3);
  for (auto& s : hardware.subclusters) s.device.memory_bytes = gib / 2;
  const auto costs = costs_on(hardware);
  for (const auto& planner : planners()) {
    CAPTURE(planner.name);
    const auto none = find_plan(hardware, costs, {.global_batch = 4}, planner);
    REQUIRE_FALSE(none);
    CAPTURE(none.why_not().reason);
    CHECK(none.why_not().why == refusal::kind::infeasible);
    CHECK(none.why_not().reason.find(" GiB") != std::string::npos);
  }
}

TEST_CASE("of refusals, one that proves something is told; that a search was stopped only where somebody did so") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  const planner_entry moody{
      .name = "moody",
      .what = "refuses each size in another way",
      .make = [](const cluster&, const any_cost_model&, const planning_problem& problem, const planner_choice&) -> outcome<plan> {
        using enum refusal::kind;
        if (problem.microbatch_size == 1) return refusal{stopped, "it ended"};
        if (problem.microbatch_size == 2) return refusal{not_applicable, "it is not for twos"};
        return refusal{infeasible, "stage 3 of " + std::to_string(problem.microbatch_size) + " does not fit"};
      }};
  plan_request request{.global_batch = 8};
  CHECK(find_plan(hardware, costs, request, moody).why_not().reason == "stage 3 of 4 does not fit");
  request.global_batch = 2;
  CHECK(find_plan(hardware, costs, request, moody).why_not().reason == "it is not for twos");
  request.global_batch = 8;
  request.go_on = [] { return false; };
  CHECK(find_plan(hardware, costs, request, moody).why_not().reason == "it ended");
}

TEST_CASE("go_on ends a search with the best plan so far, or says that there is none yet") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  plan_request request{.global_batch = 12};
  int asked = 0;
  request.go_on = [&] { return ++asked < 40; };
  const auto found = find_plan(hardware, costs, request);
  if (found) {
    REQUIRE(found->evidence);
    CHECK_FALSE(found->evidence->complete);
  } else {
    CHECK(found.why_not().why == refusal::kind::stopped);
  }
}

TEST_CASE("a search that is ended says what no plan is below, of all microbatch sizes") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  plan_request request{.global_batch = 64};
  int asked = 0;
  request.go_on = [&] { return ++asked < 4000; };
  request.spent = [&] { return asked / 4000.0; };
  const auto soon = find_plan(hardware, costs, request);
  REQUIRE(soon);
  REQUIRE(soon->evidence);
  CHECK(soon->evidence->stopped);
  CHECK_FALSE(soon->evidence->complete);
  CHECK(soon->evidence->objective_bound > 0.1 * objective_of(*soon));
  // The passage of a microbatch is shorter where backwards are split: work alone is known then.
  asked = 0;
  auto split = request;
  split.schedule = "zb_h1";
  const auto other = find_plan(hardware, costs, split);
  REQUIRE(other);
  CHECK(other->evidence->objective_bound > 0);
  CHECK(other->evidence->objective_bound <= soon->evidence->objective_bound);
  const auto shortest = find_plan(hardware, costs, {.global_batch = 64, .schedule = "auto"});
  REQUIRE(shortest);
  CHECK(other->evidence->objective_bound <= objective_of(*shortest));
  // Alone, every size has a plan that is not below it.
  for (const int size : microbatch_sizes(64))
    if (const auto own = find_plan(hardware, costs, {.global_batch = 64, .microbatch_size = size, .planner = "interop_dp"}))
      CHECK(objective_of(*own) >= soon->evidence->objective_bound);
}

TEST_CASE("where the budget is told, the default planner begins with turns of others, and is ahead of itself without them" *
          doctest::skip(sanitizer_share > 1)) {
  cluster hardware;
  const char* const kinds[] = {"V100-SXM2-32GB", "A100-SXM4-40GB", "T4"};
  for (int k = 0; k < 3; ++k) {
    hardware.subclusters.push_back({kinds[k], *find_device(kinds[k]), 3, 4, {5e-6, 30e9}, {10e-6, 25e9 / 8}});
    for (int a = 0; a < k; ++a) hardware.links.push_back({.a = a, .b = k, .link = {50e-6, 10e9 / 8}});
  }
  const auto layers = make_chain(gpt({.layers = 12, .hidden = 2048, .heads = 16, .vocab = 32000, .sequence = 1024}));
  const auto costs = [&](int size) { return analytic_cost_model(hardware, layers, {.microbatch_size = size}); };
  // Time is how often the search has asked for it.
  const auto within_on = [&](const costs_by_size& own, double times, bool told) {
    double asked = 0;
    plan_request request{.global_batch = 64};
    request.go_on = [&] { return ++asked < times; };
    if (told) request.spent = [&] { return ++asked / times; };
    return find_plan(hardware, own, request);
  };
  const auto within = [&](double times, bool told) { return within_on(costs, times, told); };
  constexpr double times = 8000;
  const auto before = within(times, false), now = within(times, true);
  REQUIRE(before);
  REQUIRE(now);
  CHECK(objective_of(*now) < 0.97 * objective_of(*before));
  CHECK(now->planner == "parallel_pipelines");
  CHECK(sample_count(*now) == 64);
  REQUIRE(now->evidence);
  CHECK(now->evidence->objective_bound <= objective_of(*now));
  CHECK_FALSE(now->evidence->complete);
  const auto judged = evaluate(hardware, costs, *now);
  REQUIRE(judged);
  CHECK(judged->shortage.empty());
  CHECK(objective_of(judged->plan) == doctest::Approx(objective_of(*now)));
  CHECK(within(times, true)->pipelines == now->pipelines);
  // Sizes may have costs of other degrees than the best plan's size has, as those of profiles do.
  const auto apart = [&](int size) {
    return apart_costs{analytic_cost_model(hardware, layers, {.microbatch_size = size}), size <= 2};
  };
  const auto of_apart = within_on(apart, times, true);
  REQUIRE(of_apart);
  CHECK(evaluate(hardware, apart, *of_apart));
}

TEST_CASE("of few devices, single ones have a turn, too: in little time the default planner is ahead of itself and of others") {
  cluster hardware;
  const std::pair<const char*, int> kinds[] = {{"A100-SXM4-40GB", 1}, {"RTX3090", 2}, {"V100-SXM2-16GB", 2}, {"RTX4090", 2}};
  for (int k = 0; k < 4; ++k) {
    hardware.subclusters.push_back(
        {kinds[k].first, *find_device(kinds[k].first), kinds[k].second, 1, {5e-6, 30e9}, {30e-6, 1e9 / 8}});
    for (int a = 0; a < k; ++a) hardware.links.push_back({.a = a, .b = k, .link = {50e-6, 25e9 / 8}});
  }
  const auto layers = make_chain(gpt({.layers = 17, .hidden = 1024, .heads = 8, .vocab = 50257, .sequence = 1024}));
  const auto costs = [&](int size) { return analytic_cost_model(hardware, layers, {.microbatch_size = size}); };
  // Time is how often the search has asked for it.
  const auto within = [&](double times, bool told, const char* planner, bool mixed = false) {
    double asked = 0;
    plan_request request{.global_batch = 6, .planner = planner, .mixed_stages = mixed};
    request.go_on = [&] { return ++asked < times; };
    if (told) request.spent = [&] { return ++asked / times; };
    const auto found = find_plan(hardware, costs, request);
    REQUIRE(found);
    return objective_of(*found);
  };
  CHECK(within(2000, true, "") < 0.98 * within(2000, false, ""));
  for (const auto* other : {"placement", "interop_dp", "hexiscale", "hetauto_exact"}) {
    CAPTURE(other);
    CHECK(within(2000, true, "") <= within(2000, false, other) * (1 + 1e-9));
  }
  // Stages of unlike devices are looked for beside the others, and have these in little time.
  CHECK(within(2000, true, "", true) <= within(2000, true, "") * (1 + 1e-9));
  // Of a third of that there is at least the plan that takes no time.
  CHECK(within(700, true, "") <= within(700, false, "") * (1 + 1e-9));
}

TEST_CASE("few devices: what a bound leaves open is looked at, and may be far better than what sums over stages lead to") {
  // By sums, two stages on the A100s are best (176 ms).
  const cluster hardware{.subclusters = {{"v100", *find_device("V100-SXM2-32GB"), 1, 2, {5e-6, 64e9 / 8}, {30e-6, 100e9 / 8}},
                                         {"a100", *find_device("A100-SXM4-40GB"), 2, 1, {5e-6, 1200e9 / 8}, {30e-6, 100e9 / 8}},
                                         {"rtx3090", *find_device("RTX3090"), 1, 2, {5e-6, 256e9 / 8}, {30e-6, 100e9 / 8}}},
                         .links = {{.a = 1, .b = 0, .link = {50e-6, 1e9 / 8}},
                                   {.a = 2, .b = 0, .link = {50e-6, 5e9 / 8}},
                                   {.a = 2, .b = 1, .link = {50e-6, 5e9 / 8}}}};
  const auto model = gpt({.layers = 16, .hidden = 3072, .heads = 24, .vocab = 32000, .sequence = 512});
  const auto found = find_plan(hardware, model, {.global_batch = 8, .microbatch_size = 1});
  REQUIRE(found);
  CHECK(objective_of(*found) < 0.165);
  CHECK(found->evidence->objective_bound > 0.9 * objective_of(*found));
}

TEST_CASE("stages that fill a node each are on two: the bound knows what crosses between them") {
  const cluster hardware{.subclusters = {{"v100", *find_device("V100-SXM2-32GB"), 2, 4, {5e-6, 64e9 / 8}, {30e-6, 1e9 / 8}}},
                         .links = {}};
  const auto model = gpt({.layers = 3, .hidden = 1536, .heads = 12, .vocab = 50257, .sequence = 2048});
  const auto found = find_plan(hardware, model, {.global_batch = 16, .microbatch_size = 16});
  REQUIRE(found);
  CHECK(found->evidence->complete);
}

TEST_CASE("few devices, which other planners leave idle: a plan of them all is found if it is better" *
          doctest::skip(sanitizer_share > 1)) {
  // One stage on each RTX 3090 leaves the T4s idle; pairs of either kind, cut by tensors, are 4 % faster.
  const cluster hardware{.subclusters = {{"t4", *find_device("T4"), 2, 2, {5e-6, 1200e9 / 8}, {30e-6, 10e9 / 8}},
                                         {"rtx3090", *find_device("RTX3090"), 1, 4, {5e-6, 64e9 / 8}, {30e-6, 100e9 / 8}}},
                         .links = {{.a = 0, .b = 1, .link = {50e-6, 5e9 / 8}}}};
  const auto model = gpt({.layers = 14, .hidden = 1536, .heads = 12, .vocab = 32000, .sequence = 2048});
  const auto any = find_plan(hardware, model, {.global_batch = 3});
  const auto all = find_plan(hardware, model, {.global_batch = 3, .use_all_devices = true});
  REQUIRE(any);
  REQUIRE(all);
  CHECK(objective_of(*any) <= objective_of(*all) * (1 + 1e-9));
}

TEST_CASE("of a generous budget, turns of others take no more than a part of what the search takes") {
  for (const auto& [each, most] : {std::pair{9, 1.3}, {2, 1.5}}) {
    CAPTURE(each);
    cluster hardware;
    for (int k = 0; k < 2; ++k)
      hardware.subclusters.push_back(
          {k == 0 ? "near" : "far", *find_device("A100-SXM4-40GB"), each, 1, {5e-6, 30e9}, {10e-6, 25e9 / 8}});
    hardware.links.push_back({.a = 0, .b = 1, .link = {50e-6, 10e9 / 8}});
    const auto layers = make_chain(gpt({.layers = 2, .hidden = 1024, .heads = 8, .vocab = 1000, .sequence = 128}));
    const auto costs = [&](int size) { return analytic_cost_model(hardware, layers, {.microbatch_size = size}); };
    // Time is how often the search has asked for it.
    double asked = 0;
    plan_request request{.global_batch = 4, .microbatch_size = 2};
    request.go_on = [&] { return ++asked > 0; };
    const auto alone = find_plan(hardware, costs, request);
    const double takes = std::exchange(asked, 0);
    request.go_on = [&] { return ++asked < 20 * takes; };
    request.spent = [&] { return asked / (20 * takes); };
    const auto found = find_plan(hardware, costs, request);
    REQUIRE(alone);
    REQUIRE(found);
    CHECK(objective_of(*found) <= objective_of(*alone) * (1 + 1e-9));
    CHECK_FALSE(found->evidence->stopped);
    CHECK(asked < most * takes);
  }
}

TEST_CASE("what is asked for is checked") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  const auto asks = [&](const plan_request& r) { (void)find_plan(hardware, costs, r); };
  CHECK_THROWS_WITH_AS(asks({.global_batch = 0}), "the global batch must be at least 1", input_error);
  CHECK_THROWS_WITH_AS(asks({.global_batch = 8, .microbatch_size = 3}),
                       "microbatches of 3 samples do not divide the global batch of 8", input_error);
  CHECK_THROWS_WITH_AS(asks({.global_batch = 8, .planner = "magic"}),
                       "there is no planner magic; there are parallel_pipelines, interop_dp, hexiscale, hetauto, hetauto_exact, "
                       "placement, uniform, amp, metis_like, alpa_like",
                       input_error);
  CHECK_THROWS_WITH_AS(asks({.global_batch = 8, .schedule = "2f2b"}), "there is no schedule 2f2b", input_error);
}

TEST_CASE("a planner of one's own is a line of a table") {
  const auto hardware = two_kinds();
  const auto costs = costs_on(hardware);
  const planner_entry own{
      .name = "first",
      .what = "all on the first subcluster",
      .make = [](const cluster& c, const any_cost_model& model, const planning_problem& problem,
                 const planner_choice&) -> outcome<plan> {
        plan p{.planner = "first",
               .pipelines = {{.microbatches = problem.microbatches, .microbatch_size = problem.microbatch_size}}};
        auto& line = p.pipelines.front();
        line.schedule.name = "1f1b";
        line.stages.push_back({.layers = {0, model.layer_count()}, .devices = {{{0, 1, 1}, 0}}});
        auto judged = evaluate(c, model, std::move(p));
        if (!judged) return judged.why_not();
        return std::move(judged->plan);
      }};
  const auto found = find_plan(hardware, costs, {.global_batch = 4}, own);
  REQUIRE(found);
  CHECK(found->planner == "first");
}

TEST_CASE("searches as they were published are asked for by a choice") {
  const auto hardware = two_kinds();
  const auto costs = any_cost_model::owner_of(costs_on(hardware)(2));
  const planning_problem problem{.microbatches = 8, .microbatch_size = 2};
  const auto tree = planner_named("hetauto").make(hardware, costs, problem, {.seed = 3, .published = true});
  hetauto_options options{.search = published_tree_search()};
  options.search.seed = 3;
  REQUIRE(tree);
  CHECK(*tree == *hetauto(hardware, costs, problem, options));
  CHECK(tree->evidence->work != planner_named("hetauto").make(hardware, costs, problem, {.seed = 3})->evidence->work);
  const auto groups = planner_named("hexiscale").make(hardware, costs, problem, {.published = true});
  REQUIRE(groups);
  CHECK(*groups == *hexiscale(hardware, costs, problem, {.serial_transfers = true}));
}

TEST_CASE("plans of the frontier: none is both slower and dearer than another") {
  auto hardware = two_kinds();
  hardware.subclusters[0].device.price_per_hour = 1;
  hardware.subclusters[1].device.price_per_hour = 3;
  const auto costs = costs_on(hardware);
  plan_request request{.global_batch = 8, .microbatch_size = 1};
  const auto fastest = find_plan(hardware, costs, request);
  REQUIRE(fastest);
  const auto plans = find_frontier(hardware, costs, request, planners().front(), *fastest);
  REQUIRE_FALSE(plans.empty());
  for (std::size_t i = 1; i < plans.size(); ++i) {
    CHECK(plans[i].predicted.iteration_s > plans[i - 1].predicted.iteration_s);
    CHECK(*plans[i].predicted.cost_per_sample < *plans[i - 1].predicted.cost_per_sample);
  }
  if (sanitizer_share > 1) return;  // the same search over more sizes
  // What is proven beside a plan of one microbatch size holds for those of all.
  request = {.global_batch = 4};
  request.objective = plan_objective::cost;
  const auto cheapest = find_plan(hardware, costs, request);
  REQUIRE(cheapest);
  request.objective = plan_objective::iteration;
  const auto of_all = find_frontier(hardware, costs, request, planners().front(), *cheapest);
  for (const auto& p : of_all)
    if (p.objective == plan_objective::cost) {
      REQUIRE(p.evidence);
      CHECK(p.evidence->objective_bound > 0);
      CHECK(p.evidence->objective_bound == cheapest->evidence->objective_bound);
      CHECK(p.evidence->objective_bound <= *of_all.back().predicted.cost_per_sample);
    }
}

TEST_CASE("find_plan of a transformer is that of its costs, and remembers them") {
  const auto hardware = two_kinds();
  const transformer model = gpt({.layers = 4, .hidden = 512, .heads = 8, .vocab = 1000, .sequence = 128});
  const training_cost_options options{.recompute = {recomputation::none}, .zero = {0}};
  const auto found = find_plan(hardware, model, {.global_batch = 8, .planner = "interop_dp"}, options);
  const auto by_costs =
      find_plan(hardware, training_costs(hardware, model, options), {.global_batch = 8, .planner = "interop_dp"});
  REQUIRE(found);
  REQUIRE(by_costs);
  CHECK(found->pipelines == by_costs->pipelines);
  CHECK(found->predicted.mfu > 0);
  CHECK(found->setting.costs == "tile");
  CHECK(found->setting.sequence == 128);
  CHECK(found->setting.precision == "fp16");
}

TEST_CASE("a request for a priced model has what its costs tell, and a profile of shapes leaves it one size and one pipeline") {
  const auto hardware = two_kinds();
  const transformer model = gpt({.layers = 4, .hidden = 512, .heads = 8, .vocab = 1000, .sequence = 128});
  const auto told = request_for(hardware, {.model = model, .options = {.precision = precision::bf16}}, {.global_batch = 8});
  CHECK(told.arithmetic == precision::bf16);
  CHECK(told.flops_per_sample == training_flops(make_chain(model, granularity::sublayer)));
  CHECK(told.setting.costs == "tile");
  CHECK(told.microbatch_size == 0);
  CHECK(told.lacks(3).empty());
  CHECK(told.costs_on(hardware)(1).layer_count() == make_chain(model, granularity::sublayer).size());
  const auto kept = request_for(hardware, {.model = model}, {.microbatch_size = 2, .lacks = [](int) { return "it is so"; }});
  CHECK(kept.microbatch_size == 2);
  CHECK(kept.lacks(2) == "it is so");

  profile shapes{.layers = {{.name = "x", .boundary_bytes = 1000}, {.name = "y"}}, .entries = {}};
  for (const auto* name : {"v", "a"})
    shapes.entries.push_back({.subcluster = name,
                              .forward_s = {1, 1},
                              .backward_s = {2, 2},
                              .weight_bytes = {1000, 1000},
                              .activation_bytes = {10, 10}});
  const priced_model measured{.instead = shapes};
  CHECK(request_for(hardware, measured, {.global_batch = 8}).microbatch_size == 1);
  CHECK(default_planner({}, measured).one_pipeline);
  CHECK(default_planner({.objective = plan_objective::cost}, measured).name == planners().front().name);
  CHECK(default_planner({}, {.model = model}).name == planners().front().name);
  CHECK(default_planner({.target = find_plan_target("torch")}, {.model = model}).one_pipeline);
  const auto found = find_plan(hardware, measured, {.global_batch = 8});
  REQUIRE(found);
  CHECK(found->pipelines.size() == 1);
  CHECK(found->pipelines[0].microbatch_size == 1);
  CHECK(found->setting.costs == "profile");
  CHECK(found->predicted.iteration_s == doctest::Approx(8 * 3 + 3).epsilon(0.01));  // two stages of 3 s
}

TEST_CASE("find_plan_without is the plan of what is left, told by the whole cluster") {
  auto hardware = two_kinds();
  hardware.subclusters[0].nodes = 2;
  const priced_model model{.model = transformer{.layers = 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512}};
  const plan_request request{.global_batch = 16, .microbatch_size = 2, .planner = "interop_dp"};
  for (const lost_devices lost : {lost_devices{0, 1}, lost_devices{0, 4}, lost_devices{0, 8}, lost_devices{1, 2}}) {
    CAPTURE(lost.subcluster);
    CAPTURE(lost.count);
    const auto left = without_devices(hardware, lost);
    const auto alone = find_plan(left, model, request);
    const auto found = find_plan_without(hardware, lost, model, request);
    REQUIRE(alone);
    REQUIRE(found);
    CHECK(found->predicted.iteration_s == doctest::Approx(alone->predicted.iteration_s).epsilon(1e-3));
    CHECK(found->evidence->objective_bound == alone->evidence->objective_bound);
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);
    const int devices = hardware.subclusters[as_size(lost.subcluster)].device_count();
    for (const auto& s : found->pipelines.front().stages)
      for (const auto& g : s.devices)
        if (g.mesh.subcluster == lost.subcluster) CHECK(g.first_device + g.mesh.device_count() <= devices - lost.count);
    const auto judged = evaluate(hardware, training_costs(hardware, std::get<transformer>(model.model)), *found);
    REQUIRE(judged);
    CHECK(judged->shortage.empty());
  }
  cluster one = hardware;
  one.subclusters.resize(1);
  one.links.clear();
  const auto none = find_plan_without(one, {0, 8}, model, request);
  REQUIRE(!none);
  CHECK(none.why_not().reason == "no devices are left");
  CHECK_THROWS_AS((void)find_plan_without(one, {0, 9}, model, request), input_error);
  CHECK_THROWS_AS((void)find_plan_without(one, {0, 1}, request, planner_named("interop_dp")), input_error);
}

TEST_CASE("a model that only fits a device which works by itself has a plan, and an idle device changes nothing") {
  cluster one;
  one.subclusters.push_back({"g", *find_device("RTX4090"), 1, 1, {5e-6, 1e9}, {10e-6, 1e9}});
  const transformer model = gpt({.layers = 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512});
  const training_cost_options options{.recompute = {recomputation::full}, .zero = {0}};
  const auto least = [&] {  // of a device that needs no communicators
    const auto costs = training_costs(one, model, options)(1);
    const auto where = costs.placements({0, 1, 1}).front();
    return memory_of(costs.stage({0, costs.layer_count()}, where), alone(costs.overheads(where)), 1).total();
  }();
  one.subclusters[0].device.memory_bytes = least;
  auto two = one;
  two.subclusters.push_back(one.subclusters[0]);
  two.subclusters[1].name = "idle";
  two.subclusters[1].device.memory_bytes = least / 8;
  for (const auto* hardware : {&one, &two})
    for (const std::string planner : {"", "interop_dp", "hetauto_exact"}) {
      CAPTURE(planner);
      CAPTURE(hardware->subclusters.size());
      const auto found = find_plan(*hardware, model, {.global_batch = 4, .planner = planner}, options);
      REQUIRE(found);
      REQUIRE(found->pipelines.size() == 1);
      CHECK(found->pipelines[0].microbatch_size == 1);
      const auto& s = found->pipelines[0].stages.at(0);
      CHECK(s.memory_bytes <= least);
      CHECK(s.memory_bytes > least * 99 / 100);
      CHECK(found->evidence->objective_value == found->predicted.iteration_s);
      CHECK(found->evidence->complete == (hardware == &one));
      const auto again = evaluate(*hardware, training_costs(*hardware, model, options), *found);
      REQUIRE(again);
      CHECK(again->shortage.empty());
      CHECK(again->plan.predicted.iteration_s == found->predicted.iteration_s);
    }
  const auto predicted = [&](const cluster& c) { return find_plan(c, model, {.global_batch = 4}, options)->pipelines; };
  CHECK(predicted(one) == predicted(two));
  one.subclusters[0].device.memory_bytes = least - 1;
  CHECK(!find_plan(one, model, {.global_batch = 4}, options));
}

TEST_CASE("a target of one's own with rules on devices: plans of one choice of devices are no start for another") {
  auto hardware = two_kinds();
  for (auto& s : hardware.subclusters) s.nodes = 2;
  hardware.links[0].path.nccl = false;
  auto t = *find_plan_target("hetsched");
  t.name = "mine";
  t.joined_by_nccl = true;
  for (const auto* planner : {"", "interop_dp"}) {
    if (sanitizer_share > 1 && !*planner) continue;  // all planners take minutes
    CAPTURE(planner);
    const auto found = find_plan(hardware, costs_on(hardware), {.global_batch = 8, .planner = planner, .target = t});
    REQUIRE(found);
    CHECK(gaps(*found, t, hardware).empty());
  }
}

TEST_CASE("device_bias: the plan of least regret, which loses no more than the one as priced, with the evidence of that search") {
  const auto hardware = two_kinds();
  const transformer model{.layers = 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512};
  plan_request request{.global_batch = 16, .microbatch_size = 2, .planner = "interop_dp"};
  const auto priced = find_plan(hardware, model, request);
  request.device_bias = 0.3;
  const auto found = find_plan(hardware, model, request);
  REQUIRE(priced);
  REQUIRE(found);
  CHECK(found->predicted.iteration_s >= priced->predicted.iteration_s * (1 - 1e-9));
  CHECK(found->setting == priced->setting);
  REQUIRE(found->evidence);
  CHECK(found->evidence->objective_bound == priced->evidence->objective_bound);
  CHECK(found->evidence->objective_value == found->predicted.iteration_s);
  if (sanitizer_share > 1) return;  // what follows searches ten times more
  const training_cost_options options{};
  request.costs_on = [&](const cluster& turned) -> costs_by_size { return training_costs(turned, model, options); };
  request.setting = priced->setting;
  const auto told = find_unbiased_plan(hardware, request, planner_named("interop_dp"));
  REQUIRE(told);
  CHECK(told->plan.pipelines == found->pipelines);
  CHECK(told->worst_loss <= told->fastest_loss + 1e-12);
  CHECK(told->losses.size() == speed_cases(hardware, 0.3).size());
  // Each case has its share of a budget: of one that is used up in the second case, the others have nothing.
  int begun = 0;
  auto budget = request;
  budget.costs_on = [&](const cluster& turned) {
    ++begun;
    return request.costs_on(turned);
  };
  budget.spent = [&] { return begun < 2 ? 0.0 : 1.0; };
  const auto shared = find_unbiased_plan(hardware, budget, planner_named("interop_dp"));
  REQUIRE(shared);
  CHECK(shared->losses.size() == 2);
  CHECK(shared->plan.evidence->stopped);
  // Where there is no time for more than the first search, it is that one's plan, not one that it has met.
  auto any_size = request;
  any_size.microbatch_size = 0;
  int asked = 0, most_asked = INT_MAX;
  any_size.go_on = [&] { return ++asked <= most_asked; };
  any_size.device_bias = 0;
  const auto alone = find_plan(hardware, request.costs_on(hardware), any_size, planner_named("interop_dp"));
  most_asked = std::exchange(asked, 0);
  any_size.device_bias = request.device_bias;
  const auto first = find_unbiased_plan(hardware, any_size, planner_named("interop_dp"));
  REQUIRE(alone);
  REQUIRE(first);
  CHECK(first->losses.size() == 1);
  CHECK(first->plan.predicted.iteration_s <= alone->predicted.iteration_s * (1 + 1e-9));
  auto wrong = request;
  wrong.costs_on = {};
  CHECK_THROWS_AS((void)find_plan(hardware, costs_on(hardware), wrong), input_error);
  wrong = request;
  wrong.objective = plan_objective::cost;
  CHECK_THROWS_AS((void)find_plan(hardware, costs_on(hardware), wrong), input_error);
  for (const double bias : {-0.1, 1.0, std::nan("")}) {
    wrong = request;
    wrong.device_bias = bias;
    CHECK_THROWS_AS((void)find_plan(hardware, costs_on(hardware), wrong), input_error);
  }
}

TEST_CASE("planners that share a book make the plans that they make alone, and ask no layer twice") {
  random_source random(20261127);
  int plans = 0;
  constexpr int instances = sanitizer_share > 1 ? 6 : 20;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto given = test::random_instance(random, {.layers = 5, .subclusters = 2, .devices = 4});
    test::enrich(given, random);
    const counted_costs costs{{{given.costs}}};
    const auto& hardware = given.hardware;
    const auto& problem = given.problem;
    price_book book(hardware, costs);
    const auto compare = [&](const outcome<plan>& shared, const outcome<plan>& alone) {
      REQUIRE(shared.has_value() == alone.has_value());
      if (shared)
        CHECK(*shared == *alone);
      else
        CHECK(shared.why_not().reason == alone.why_not().reason);
      plans += shared ? 1 : 0;
    };
    const hexiscale_options groups{.polish = false};
    const std::vector shared{hexiscale(book, problem, groups), hetauto_exact(book, problem), parallel_pipelines(book, problem)};
    CHECK(costs.layers_asked == given.costs.layers * static_cast<int>(given.costs.rows.size()));
    // A line of the table reads it, too, where it is handed over.
    const int asked = costs.layers_asked;
    const auto of_table = planner_named("interop_dp").make(hardware, costs, problem, {.prices = &book});
    CHECK(costs.layers_asked == asked);
    compare(of_table, planner_named("interop_dp").make(hardware, costs, problem, {}));
    CHECK(costs.layers_asked > asked);
    compare(shared[0], hexiscale(hardware, costs, problem, groups));
    compare(shared[1], hetauto_exact(hardware, costs, problem));
    compare(shared[2], parallel_pipelines(hardware, costs, problem));
  }
  CHECK(plans > instances);
}

TEST_CASE("sends that hold ranks up: plans are chosen by them, for whoever asks, and bounds stay bounds") {
  constexpr bool small = sanitizer_share > 1;  // the whole takes minutes there
  auto hardware = two_kinds();
  hardware.links[0].link.bandwidth /= 4;
  const auto model = gpt({.layers = small ? 2 : 6, .hidden = 1024, .heads = 16, .vocab = 32000, .sequence = 512});
  training_cost_options options{.stack = *find_training_stack("deepspeed")};
  REQUIRE(options.stack.sends == send_mode::blocking);
  plan_request request{.global_batch = small ? 4 : 32, .planner = "interop_dp", .use_all_devices = true};
  const auto found = find_plan(hardware, model, request, options);
  request.sends = send_mode::asynchronous;
  const auto beside = find_plan(hardware, model, request, options);
  REQUIRE(found);
  REQUIRE(beside);
  options.batch = request.global_batch;
  const auto costs = training_costs(hardware, model, options);
  const auto sent_s = [&](const plan& p) {
    const auto judged = evaluate(hardware, costs, p);
    REQUIRE(judged);
    CHECK(judged->plan.predicted.iteration_s == p.predicted.iteration_s);
    return iteration_under(*judged, send_mode::blocking);
  };
  const double chosen_s = sent_s(*found);
  CHECK(chosen_s <= (small ? 1 + 1e-9 : 0.99) * sent_s(*beside));
  CHECK(found->predicted.iteration_s >= beside->predicted.iteration_s);
  CHECK(found->setting == beside->setting);
  REQUIRE(found->evidence);
  CHECK(found->evidence->objective_bound <= chosen_s);
  CHECK(found->evidence->objective_value == found->predicted.iteration_s);
  if (small) return;
  // The same by costs, as the setting's stack sends; and no plan is looked at that there is no time for.
  request.sends = {};
  request.setting = found->setting;
  request.arithmetic = options.precision;
  request.flops_per_sample = training_flops(make_chain(model, options.cut));
  CHECK(find_plan(hardware, costs, request)->pipelines == found->pipelines);
  int asked = 0;
  request.sends_go_on = [&](int, double) { return ++asked < 1; };
  CHECK(sent_s(*find_plan(hardware, costs, request)) <= sent_s(*beside) * (1 + 1e-9));
  CHECK(asked == 1);
  // What a plan loses where devices are faster or slower is told with these sends, too.
  auto doubted = request;
  doubted.sends_go_on = {};
  doubted.device_bias = 0.2;
  doubted.microbatch_size = found->pipelines.front().microbatch_size;
  doubted.costs_on = [&](const cluster& turned) -> costs_by_size { return training_costs(turned, model, options); };
  const auto unbiased = find_unbiased_plan(hardware, doubted, planner_named("interop_dp"));
  REQUIRE(unbiased);
  double worst_s = 0, lost = 0;
  for (const auto& c : speed_cases(hardware, 0.2)) {
    const auto own_costs = training_costs(c.hardware, model, options);
    const auto own_s = [&](const plan& p) {
      const auto judged = evaluate(c.hardware, own_costs, p);
      REQUIRE(judged);
      return iteration_under(*judged, sends_under(judged->plan, send_mode::blocking));
    };
    auto alone = doubted;
    alone.device_bias = 0;
    const double least_s = own_s(*find_plan(c.hardware, own_costs, alone));
    worst_s = std::max(worst_s, own_s(unbiased->plan));
    lost = std::max(lost, own_s(unbiased->plan) / least_s - 1);
  }
  CHECK(unbiased->worst_s == doctest::Approx(worst_s).epsilon(1e-9));
  CHECK(unbiased->worst_loss >= lost - 1e-9);  // the search may know of better plans than each case's own
  // The default planner is no later than others, whose plans are not the fastest with transfers beside computing.
  auto all = request;
  all.sends_go_on = {};
  all.use_all_devices = false;
  all.planner = {};
  all.global_batch = options.batch = 8;
  all.microbatch_size = 2;
  const auto few = training_costs(hardware, model, options);
  const auto usual = find_plan(hardware, few, all);
  REQUIRE(usual);
  CHECK(usual->planner == planners().front().name);
  const double usual_s = iteration_under(*evaluate(hardware, few, *usual), sends_under(*usual, send_mode::blocking));
  for (const char* planner : {"interop_dp", "hexiscale", "hetauto", "uniform"}) {
    CAPTURE(planner);
    all.planner = planner;
    const auto theirs = find_plan(hardware, few, all);
    if (!theirs) continue;
    CHECK(usual_s <= iteration_under(*evaluate(hardware, few, *theirs), sends_under(*theirs, send_mode::blocking)) * (1 + 1e-9));
  }
  // Money: what a plan costs with its sends, in time with them.
  auto priced = hardware;
  priced.subclusters[0].device.price_per_hour = 1;
  priced.subclusters[1].device.price_per_hour = 3;
  const auto priced_costs = training_costs(priced, model, options);
  const auto judged_s = [&](const plan& p) {
    return iteration_under(*evaluate(priced, priced_costs, p), sends_under(p, send_mode::blocking));
  };
  const auto cost_of = [&](const plan& p) { return *p.predicted.cost_per_sample * judged_s(p) / p.predicted.iteration_s; };
  all.planner = {};
  auto cheap = all, late = all;
  cheap.objective = late.objective = plan_objective::cost;
  late.sends = send_mode::asynchronous;
  const auto cheapest = find_plan(priced, priced_costs, cheap);
  REQUIRE(cheapest);
  CHECK(cost_of(*cheapest) <= cost_of(*find_plan(priced, priced_costs, late)) * (1 + 1e-9));
  cheap.deadline_s = late.deadline_s = (judged_s(*cheapest) + usual_s) / 2;
  const auto in_time = find_plan(priced, priced_costs, cheap);
  REQUIRE(in_time);
  CHECK(judged_s(*in_time) <= cheap.deadline_s);
  // Of the frontier none is both slower and dearer with its sends, nor than a plan of the frontier without.
  cheap.objective = plan_objective::iteration;
  cheap.deadline_s = infinity;
  late = cheap;
  late.sends = send_mode::asynchronous;
  const auto points = find_frontier(priced, priced_costs, cheap, planners().front(), *cheapest);
  REQUIRE_FALSE(points.empty());
  for (std::size_t i = 1; i < points.size(); ++i) {
    CHECK(judged_s(points[i]) > judged_s(points[i - 1]));
    CHECK(cost_of(points[i]) < cost_of(points[i - 1]));
  }
  for (const auto& p : find_frontier(priced, priced_costs, late, planners().front(), *cheapest))
    CHECK(std::any_of(points.begin(), points.end(), [&](const plan& q) {
      return judged_s(q) <= judged_s(p) * (1 + 1e-9) && cost_of(q) <= cost_of(p) * (1 + 1e-9);
    }));
  // Published searches know nothing of sends.
  request.how.published = true;
  CHECK(find_plan(hardware, costs, request)->pipelines == beside->pipelines);
}

TEST_CASE("a deadline with sends: the cheapest plan that is in time with them, with evidence of all, and no late frontier" *
          doctest::skip(sanitizer_share > 1)) {
  cluster hardware;
  hardware.subclusters.push_back({"v", *find_device("V100-SXM2-16GB"), 4, 1, {5e-6, 150e9}, {10e-6, 10e9 / 8}});
  hardware.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 2, 1, {5e-6, 300e9}, {10e-6, 10e9 / 8}});
  hardware.subclusters[0].device.price_per_hour = 1;
  hardware.subclusters[1].device.price_per_hour = 4;
  hardware.links.push_back({0, 1, {100e-6, 5e9 / 8}});
  const auto model = gpt({.layers = 24, .hidden = 2048, .heads = 16, .vocab = 32000, .sequence = 1024});
  const auto costs = training_costs(hardware, model, {.batch = 8});
  const auto sent_s = [&](const plan& p) {
    return iteration_under(*evaluate(hardware, costs, p), sends_under(p, send_mode::blocking));
  };
  const auto cost_of = [&](const plan& p) { return *p.predicted.cost_per_sample * sent_s(p) / p.predicted.iteration_s; };
  plan_request request{.global_batch = 8, .microbatch_size = 1, .objective = plan_objective::cost};
  request.sends = send_mode::blocking;
  request.deadline_s = 0.45;
  const auto soon = find_plan(hardware, costs, request);
  request.deadline_s = 0.5;
  const auto between = find_plan(hardware, costs, request);
  request.deadline_s = 0.63;
  const auto met_of = [&](bool with_sends) {
    std::vector<plan> met;
    auto own = request;
    if (!with_sends) own.sends = send_mode::asynchronous;
    own.met = [&](const plan& p) { met.push_back(p); };
    auto found = find_plan(hardware, costs, own);
    CHECK(std::all_of(met.begin(), met.end(), [](const plan& p) { return p.objective == plan_objective::cost; }));
    return found;
  };
  const auto later = met_of(true), beside = met_of(false);
  REQUIRE(soon);
  REQUIRE(between);
  REQUIRE(later);
  REQUIRE(beside);
  REQUIRE(sent_s(*beside) > request.deadline_s);
  CHECK(sent_s(*soon) <= 0.45);
  CHECK(sent_s(*later) <= request.deadline_s);
  CHECK(cost_of(*between) <= cost_of(*soon) * (1 + 1e-9));
  CHECK(cost_of(*later) <= cost_of(*between) * (1 + 1e-9));
  REQUIRE(later->evidence);
  CHECK(later->evidence->objective_value == *later->predicted.cost_per_sample);
  CHECK(later->evidence->objective_bound == beside->evidence->objective_bound);
  CHECK_FALSE(later->evidence->complete);
  for (const auto& p : find_frontier(hardware, costs, request, planners().front(), *later))
    CHECK(sent_s(p) <= request.deadline_s);
  // Without any time left, plans that are known are looked at until one is in time.
  const auto known = fastest_with_sends(
      hardware, costs, {*beside, *soon}, send_mode::blocking,
      {.objective = plan_objective::cost, .deadline_s = request.deadline_s, .go_on = [](int, double) { return false; }});
  REQUIRE(known);
  CHECK(known->plan.pipelines == soon->pipelines);
}
