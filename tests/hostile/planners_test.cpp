// SPDX-License-Identifier: Apache-2.0
#include "hostile_costs.hpp"

#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners.hpp>
#include <hetsched/planners/any_schedule.hpp>
#include <hetsched/planners/baselines.hpp>
#include <hetsched/planners/find_inference_plan.hpp>
#include <hetsched/planners/first_plan.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/hexiscale/hand_out.hpp>
#include <hetsched/planners/hexiscale/partition.hpp>
#include <hetsched/planners/hexiscale/polish.hpp>
#include <hetsched/planners/hexiscale/published.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/partition.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/planners/placement/search.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A number of which `good` is one, or in one of `n` cases any.
double mostly_double(random_source& r, double good, int n = 25) { return one_in(r, n) ? some_double(r) : good; }

planning_problem some_problem(random_source& r) {
  planning_problem p{.microbatches = some_count(r), .microbatch_size = one_in(r, 30) ? some_int(r) : 1};
  if (one_in(r, 20)) p.objective = static_cast<plan_objective>(r.integer(0, 3));
  p.use_all_devices = one_in(r, 6);
  p.flops_per_sample = mostly_double(r, 1e9);
  if (one_in(r, 20)) p.deadline_s = some_double(r);
  if (one_in(r, 20)) p.beat = some_double(r);
  if (one_in(r, 20)) p.enough = some_double(r);
  if (one_in(r, 20)) p.go_on = [] { return false; };
  return p;
}
warmup_rule some_rule(random_source& r) { return static_cast<warmup_rule>(r.integer(0, one_in(r, 12) ? 9 : 3)); }

/// What a planner may return: a plan that holds, or a reason.
void expect_plan(const outcome<plan>& found) {
  if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
  expect(!found->pipelines.empty(), "the plan is empty");
  expect_time(found->predicted.iteration_s);
}

template <class Options, class Planner>
void plan_with(random_source& r, Planner planner, Options options) {
  const auto hardware = some_hardware(r);
  const auto costs = some_costs(r);
  expect_plan(planner(hardware, costs, some_problem(r), options));
}

interop_options some_interop(random_source& r) {
  return {.warmup = some_rule(r),
          .epsilon = mostly_double(r, .1),
          .order = static_cast<subcluster_order>(r.integer(0, 3)),
          .gap = mostly_double(r, .01),
          .near_tie = mostly_double(r, .01),
          .effort = mostly_double(r, .01),
          .enumeration = mostly_double(r, .1),
          .looks = mostly(r, 1, 20),
          .known_bound = mostly_double(r, 0),
          .hope = mostly_double(r, 1.5),
          .prove = one_in(r, 4),
          .rows = one_in(r, 2)};
}
hetauto_options some_hetauto(random_source& r) {
  hetauto_options o;
  o.search.rollouts = one_in(r, 12) ? -1 : 20;
  o.search.exploration = mostly_double(r, .3);
  o.search.greedy = mostly_double(r, .9);
  if (one_in(r, 12)) o.schedule = "none";
  return o;
}
hexiscale_options some_hexiscale(random_source& r) {
  return {.max_pipelines = one_in(r, 12) ? some_int(r) : 4,
          .balance = {mostly_double(r, 1.1)},
          .seeds = one_in(r, 20) ? 0 : 1,
          .most_vertices = one_in(r, 12) ? some_int(r) : 8,
          .top = mostly(r, 2, 20),
          .polish = one_in(r, 3),
          .polish_effort = mostly_double(r, .01),
          .warmup = some_rule(r),
          .epsilon = mostly_double(r, .1)};
}
parallel_pipelines_options some_parallel(random_source& r) {
  parallel_pipelines_options o{.warmup = some_rule(r),
                               .epsilon = mostly_double(r, .1),
                               .gap = mostly_double(r, .01),
                               .rounds = one_in(r, 20) ? -1 : 3,
                               .effort = mostly_double(r, .01),
                               .near_tie = mostly_double(r, .01),
                               .looks = mostly(r, 1, 20),
                               .hopeless = mostly_double(r, 1.05),
                               .listed = mostly64(r, 100, 20)};
  if (one_in(r, 8)) o.start = {{pipeline_plan{}}};
  return o;
}
baseline_options some_baseline(random_source& r) {
  return {.schedule = one_in(r, 12) ? "none" : "exact_1f1b", .epsilon = mostly_double(r, .1), .one_order = one_in(r, 2)};
}
plan_request some_request(random_source& r) {
  plan_request q{.global_batch = some_count(r, 4), .microbatch_size = one_in(r, 12) ? some_int(r) : r.integer(0, 1)};
  const char* const names[] = {"interop_dp", "hexiscale", "metis", "none"};
  q.planner = one_of(r, names);
  const char* const schedules[] = {"", "", "gpipe", "auto", "zb_h1", "none"};
  q.schedule = one_of(r, schedules);
  if (one_in(r, 20)) q.deadline_s = some_double(r);
  q.how.epsilon = mostly_double(r, .1);
  q.how.warmup = some_rule(r);
  q.flops_per_sample = mostly_double(r, 1e9);
  q.mixed_stages = one_in(r, 12);
  if (one_in(r, 20)) q.target = one_of(r, plan_targets());
  return q;
}

/// Of as many layers as small models have, now and then.
plan plan_of_one_stage(random_source& r) {
  plan p;
  auto& line = p.pipelines.emplace_back();
  line.microbatches = some_count(r);
  line.microbatch_size = some_count(r, 2);
  line.schedule.name = "1f1b";
  line.stages.push_back({.layers = {0, mostly(r, one_in(r, 2) ? 6 : 2)},
                         .devices = {{{mostly(r, one_in(r, 2)), 1, some_count(r, 2)}, 0}},
                         .degrees = {.data = mostly(r, 1), .context = mostly(r, 1), .tensor = mostly(r, 1)}});
  return p;
}

inference_options some_served(random_source& r) {
  return {.prompt_tokens = mostly(r, 8), .output_tokens = mostly(r, 4), .batch = mostly(r, 1)};
}

/// By formulas, or as measured on single devices; fields may be wrong, and there may be nothing.
priced_model some_priced_model(random_source& r) {
  priced_model m{.extrapolate = one_in(r, 2)};
  transformer small{.layers = 2, .hidden = 64, .heads = 4, .vocab = 128, .sequence = 32};
  if (one_in(r, 6)) small.hidden = some_int(r);
  if (one_in(r, 6)) small.layers = r.integer(-1, 3);  // legal ones that are too many to make here are left out
  if (!one_in(r, 6)) m.model = small;
  if (one_in(r, 8)) m.model = layer_chain{};
  m.options.batch = one_in(r, 12) ? some_int(r) : 0;
  m.options.max_context = mostly(r, 1);
  replica_row row{.subcluster = one_in(r, 6) ? "none" : "", .device = "T4", .microbatch_size = mostly(r, 1)};
  row.forward_s = row.backward_s = {mostly_double(r, 1), 1};
  row.weight_bytes = row.activation_bytes = {mostly64(r, 10, 20), 10};
  if (one_in(r, 3)) m.instead = replica_profile{{{"x", mostly64(r, 8, 20)}, {"y", 0}}, {row}};
  if (one_in(r, 6)) m.instead = hexiscale_formulas{};
  if (one_in(r, 6))
    m.instead = profile{{{"x", mostly64(r, 8, 20)}, {"y", 0}},
                        {{.device = "T4",
                          .devices = mostly(r, 1),
                          .forward_s = row.forward_s,
                          .backward_s = row.backward_s,
                          .weight_bytes = row.weight_bytes,
                          .activation_bytes = row.activation_bytes}}};
  return m;
}

device_anchor some_anchor(random_source& r) {
  return {.device = one_in(r, 6) ? "none" : "T4",
          .model = {.layers = 2, .hidden = 64, .heads = 4, .vocab = 128, .sequence = 32},
          .tokens_per_s = mostly_double(r, 1e5, 6)};
}

/// On single devices of each subcluster; fields may be wrong.
plan some_plan(random_source& r) {
  plan p;
  p.pipelines.push_back({.microbatches = some_count(r), .schedule = {.name = "exact_1f1b"}});
  for (int i = 0; i < 2; ++i) {
    p.pipelines[0].stages.push_back({.layers = {2 * i, 2 * i + 2}, .devices = {{{i, 1, 1}, mostly(r, 0, 20)}}, .warmup = 1});
    p.pipelines[0].stages[static_cast<std::size_t>(i)].cost = {.forward_s = some_time(r, 30), .backward_s = some_time(r, 30)};
  }
  p.pipelines[0].boundaries.push_back({.forward_s = some_time(r, 30), .backward_s = some_time(r, 30)});
  if (!one_in(r, 3)) return p;
  auto& s = p.pipelines[0].stages[1];
  switch (r.integer(0, 7)) {
    case 0:
      s.devices.clear();
      break;
    case 1:
      s.devices[0].mesh = {mostly(r, 1, 2), mostly(r, 1, 2), mostly(r, 1, 2)};
      break;
    case 2:
      s.layers.last = some_int(r);
      break;
    case 3:
      s.degrees.data = some_int(r);
      break;
    case 4:
      p.pipelines[0].boundaries.clear();
      break;
    case 5:
      p.pipelines[0].stages.clear();
      break;
    case 6:
      p.pipelines.push_back(p.pipelines[0]);
      break;
    default:
      p.pipelines.clear();
  }
  return p;
}

plan evaluated(random_source& r, const cluster& hardware, const hostile_costs& costs) {
  auto p = some_plan(r);
  if (auto judged = one_in(r, 3) ? outcome<evaluation>(refusal{}) : evaluate(hardware, costs, p)) p = judged->plan;
  return p;
}

device_graph some_graph(random_source& r) {
  const int n = r.integer(0, 4);
  device_graph g{some_times(r, n), some_times(r, n * n)};
  if (one_in(r, 3)) return g;
  for (int a = 0; a < n; ++a)
    for (int b = 0; b <= a && static_cast<std::size_t>(a * n + b) < g.edges.size(); ++b) {
      const auto i = static_cast<std::size_t>(a * n + b), j = static_cast<std::size_t>(b * n + a);
      if (a == b) g.edges[i] = 0;
      if (j < g.edges.size()) g.edges[i] = g.edges[j];
    }
  return g;
}
std::vector<int> some_parts(random_source& r, const device_graph& g) {
  std::vector<int> parts;
  for (std::size_t v = one_in(r, 12) ? 1 : 0; v < g.size(); ++v) parts.push_back(mostly(r, r.integer(0, 1), 20));
  return parts;
}
std::vector<line_pace> some_paces(random_source& r) {
  std::vector<line_pace> all;
  for (int i = r.integer(0, 3); i > 0; --i) all.push_back({some_time(r, 30), some_time(r, 30)});
  return all;
}

placement_chain some_chain(random_source& r) {
  placement_chain c{.layers = 3, .pools = {{2}, {1}}};
  for (int k = 0; k < 2; ++k) {
    placement_kind kind{.pool = k, .temporary = {1, 1, 1}, .memory = {.room = 100}};
    for (auto* sums : {&kind.seconds_before, &kind.state_before, &kind.in_flight_before}) *sums = {0, 1, 2, 3};
    c.kinds.push_back(kind);
  }
  c.transfers.assign(8, {.1, .1});
  if (!one_in(r, 2)) return c;
  auto& kind = one_of(r, c.kinds);
  switch (r.integer(0, 13)) {
    case 0:
      c.layers = one_in(r, 2) ? 4 : r.integer(-1, 0);
      break;
    case 1:
      one_of(r, c.pools).count = mostly(r, 0, 3);
      break;
    case 2:
      one_of(r, c.pools).twin = some_int(r);
      break;
    case 3:
      kind.pool = some_int(r);
      break;
    case 4:
      one_of(r, kind.seconds_before) = some_double(r);
      break;
    case 5:
      one_of(r, kind.state_before) = some_double(r);
      break;
    case 6:
      one_of(r, kind.temporary) = some_double(r);
      break;
    case 7:
      one_of(r, c.transfers).seconds = some_double(r);
      break;
    case 8:
      c.transfers.pop_back();
      break;
    case 9:
      c.boundary_kinds = {some_int(r), 0};
      break;
    case 10:
      c.stages = some_int(r);
      break;
    case 11:
      kind.memory.room = some_double(r);
      break;
    case 12:
      kind.copies = {{.owner = some_int(r), .layer = some_int(r), .weight_bytes = some_int64(r)}};
      break;
    default:
      kind.temporary.pop_back();
  }
  return c;
}
void expect_found(const placement_found& found) {
  if (!found.best) return;
  expect(!found.best->stages.empty(), "there are no stages");
  expect_time(found.value);
  expect(found.bound <= found.value, "the bound is above the value");
}

partition_problem some_partition(random_source& r) {
  partition_problem p{.devices = {some_count(r, 2), some_count(r, 2)}, .microbatches = some_count(r)};
  std::vector<std::vector<double>> seconds;
  for (int k = 0; k < 2; ++k) {
    seconds.emplace_back();
    for (int l = 0; l < 4; ++l) seconds.back().push_back(some_time(r, 60));
  }
  p.seconds = seconds;
  if (one_in(r, 2)) p.transfer_s = some_times(r, one_in(r, 3) ? 12 : 3, 20);
  if (one_in(r, 3)) p.forward_share = some_time(r, 3);
  if (one_in(r, 3)) p.weight_bytes = some_times(r, 4);
  if (one_in(r, 3)) p.activation_bytes = some_times(r, 4);
  if (one_in(r, 3)) p.memory_bytes = one_in(r, 2) ? std::vector<double>{10, 20} : some_times(r, 2);
  p.warmup = some_rule(r);
  p.epsilon = mostly_double(r, .1);
  return p;
}

const std::vector<door> searches{
    {"interop_dp",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return interop_dp(a...); }, some_interop(r));
     }},
    {"hetauto",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return hetauto(a...); }, some_hetauto(r));
     }},
    {"hetauto_of_batch",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const auto of = [&](int) -> const hostile_costs& { return costs; };
       expect_plan(hetauto_of_batch(hardware, of, some_count(r), some_problem(r), some_hetauto(r)));
     }},
    {"hetauto_exact",
     [](random_source& r) {
       const hetauto_exact_options o{.warmup = some_rule(r),
                                     .epsilon = mostly_double(r, .1),
                                     .gap = mostly_double(r, .01),
                                     .periods = mostly(r, 20, 20),
                                     .near_tie = mostly_double(r, .01),
                                     .effort = mostly_double(r, .01),
                                     .polished = mostly(r, 1, 20),
                                     .looks = mostly(r, 1, 20),
                                     .enumeration = mostly_double(r, .1),
                                     .prove = one_in(r, 4)};
       plan_with(
           r, [](auto&&... a) { return hetauto_exact(a...); }, o);
     }},
    {"hexiscale",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return hexiscale(a...); }, some_hexiscale(r));
     }},
    {"parallel_pipelines",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return parallel_pipelines(a...); }, some_parallel(r));
     }},
    {"time_cost_frontier",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const auto found =
           time_cost_frontier(hardware, costs, some_problem(r), some_parallel(r), one_in(r, 6) ? some_count(r) : 2);
       if (found)
         for (const auto& p : *found) expect_plan(p);
     }},
    {"place_stages",
     [](random_source& r) {
       placement_options o{.stages = one_in(r, 6) ? some_int(r) : 0, .prove = one_in(r, 3)};
       if (one_in(r, 6)) o.groups = {{0, some_count(r, 2), 1}, {1, 1, some_count(r, 2)}};
       plan_with(
           r, [](auto&&... a) { return place_stages(a...); }, o);
     }},
    {"place_inference",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const inference_problem asked{.in_flight = some_count(r),
                                     .batch_size = mostly(r, 1, 20),
                                     .use_all_devices = one_in(r, 6),
                                     .objective = static_cast<plan_objective>(r.integer(one_in(r, 12) ? 0 : 2, 3)),
                                     .parts = mostly(r, 0, 12)};
       const auto found = place_inference(hardware, costs, asked, {.stages = one_in(r, 6) ? some_int(r) : 0});
       if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
       expect_time(objective_of(*found));
     }},
    {"uniform_pipelines",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return uniform_pipelines(a...); }, some_baseline(r));
     }},
    {"amp",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return amp(a...); }, some_baseline(r));
     }},
    {"equal_pipelines",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return equal_pipelines(a...); }, some_baseline(r));
     }},
    {"metis_like",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return metis_like(a...); }, some_baseline(r));
     }},
    {"alpa_like",
     [](random_source& r) {
       plan_with(
           r, [](auto&&... a) { return alpa_like(a...); }, some_baseline(r));
     }},
    {"any_schedule_pipelines",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       price_book book(hardware, costs);
       const any_schedule_options o[] = {{.microbatches = some_count(r),
                                          .haste = mostly_double(r, 1, 8),
                                          .in_flight = one_in(r, 6) ? some_int(r) : 1,
                                          .below_s = mostly_double(r, 0, 8),
                                          .steps = mostly64(r, 10'000)}};
       const auto found = any_schedule_pipelines(book, o);
       if (found)
         for (const auto& p : *found)
           if (p) expect_time(p->bound_s);
     }},
    {"find_plan",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       expect_plan(find_plan(
           hardware, [&](int) -> const hostile_costs& { return costs; }, some_request(r)));
     }},
    {"find_plan_without",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       auto request = some_request(r);
       if (!one_in(r, 6))
         request.costs_on = [&](const cluster&) -> costs_by_size { return [&](int) -> const hostile_costs& { return costs; }; };
       const lost_devices lost{mostly(r, 0, 6), mostly(r, 1, 6)};
       if (one_in(r, 4))
         expect_plan(find_plan_without(hardware, lost, some_priced_model(r), request));
       else
         expect_plan(find_plan_without(hardware, lost, request, planners()[1]));
     }},
    {"find_inference_plan",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       serving_request asked{.objective = static_cast<plan_objective>(r.integer(one_in(r, 12) ? 0 : 2, 3)),
                             .in_flight = mostly(r, 0, 6)};
       asked.served.batch = mostly(r, 1, 12);
       if (one_in(r, 6)) asked.stages = some_int(r);
       if (one_in(r, 6)) asked.go_on = [] { return false; };
       const auto found = one_in(r, 3) ? find_inference_plan(hardware, some_priced_model(r), asked)
                                       : find_inference_plan(hardware, costs, asked);
       if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
       expect_time(objective_of(*found));
     }},
    {"inference_costs_on",
     [](random_source& r) { (void)inference_costs_on(some_hardware(r), some_priced_model(r), some_served(r)); }},
    {"forward_costs_on",
     [](random_source& r) {
       auto model = some_priced_model(r);
       if (!one_in(r, 6))
         model.model = make_chain(transformer{.layers = 2, .hidden = 64, .heads = 4, .vocab = 128, .sequence = 32});
       (void)forward_costs_on(some_hardware(r), model, mostly(r, 1));
     }},
    {"inference_setting_of",
     [](random_source& r) { (void)inference_setting_of(some_hardware(r), some_priced_model(r), some_served(r)); }},
    {"find_what_if_plans",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const lost_devices losses[] = {{mostly(r, 0, 6), mostly(r, 1, 6)}, {0, 1}};
       const auto found = find_what_if_plans(hardware, losses, some_priced_model(r), some_request(r));
       if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
       expect_plan(found->all);
       for (const auto& p : found->left) expect_plan(p);
     }},
    {"share_plans",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const lost_devices losses[] = {{mostly(r, 0, 6), mostly(r, 1, 6)}, {0, 1}};
       const auto some_plan = [&] {
         plan p;
         p.objective = static_cast<plan_objective>(r.integer(0, one_in(r, 12) ? 3 : 1));
         p.predicted.iteration_s = mostly_double(r, r.integer(1, 3));
         if (one_in(r, 3)) p.predicted.cost_per_sample = some_double(r);
         if (one_in(r, 3)) p.evidence.emplace();
         p.pipelines.emplace_back().stages.push_back(
             {.devices = {{{some_count(r, 1), some_count(r), some_count(r)}, some_int(r)}}});
         return p;
       };
       what_if_plans plans{.all = some_plan(), .left = {some_plan(), some_plan()}};
       if (one_in(r, 6)) plans.left.pop_back();
       share_plans(hardware, losses, plans);
       expect(plans.left.size() == 2, "a place is gone");
     }},
    {"find_unbiased_plan",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       auto request = some_request(r);
       request.device_bias = one_in(r, 6) ? some_double(r) : .2;
       if (!one_in(r, 6))
         request.costs_on = [&](const cluster&) -> costs_by_size { return [&](int) -> const hostile_costs& { return costs; }; };
       const auto found = find_unbiased_plan(hardware, request, planners()[1]);
       if (found) expect(found->worst_loss >= 0, "a loss");
     }},
    {"first_plan",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       expect_plan(first_plan(
           hardware, [&](int) -> const hostile_costs& { return costs; }, some_request(r), planners()[1]));
     }},
    {"find_frontier",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const auto of = [&](int) -> const hostile_costs& { return costs; };
       const auto known = find_plan(hardware, of, {.planner = "interop_dp"});
       auto request = some_request(r);
       request.microbatch_size = request.global_batch;
       if (known)
         for (const auto& p : find_frontier(hardware, of, request, one_in(r, 4) ? one_of(r, planners()) : planners()[0], *known))
           expect_time(p.predicted.iteration_s);
     }},
    {"plan_under_schedule",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const char* const names[] = {"gpipe", "zb_h1", "1f1b", "none", ""};
       auto p = evaluated(r, hardware, costs);
       const evaluate_options how{.flops_per_sample = mostly_double(r, 1e9), .epsilon = mostly_double(r, .1)};
       expect_plan(plan_under_schedule(
           hardware, [&](int) -> const hostile_costs& { return costs; }, std::move(p), one_of(r, names), how, one_in(r, 3)));
     }},
    {"partition",
     [](random_source& r) {
       if (const auto found = partition(some_partition(r))) {
         expect_time(found->iteration_s);
         expect(found->bound_s <= found->iteration_s, "the bound is above the iteration");
       }
     }},
    {"polish_pipelines",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       auto p = evaluated(r, hardware, costs);
       if (one_in(r, 2)) return expect_plan(polish_pipelines(hardware, costs, p, some_problem(r), some_interop(r)));
       std::vector<pipeline_devices> devices(one_in(r, 6) ? 2 : 1);
       if (!one_in(r, 6)) devices[0] = {{{mostly(r, 0), 1, mostly(r, 1)}, mostly(r, 0)}, {{1, 1, 1}, 0}};
       expect_plan(polish_pipelines(hardware, costs, p, devices, some_problem(r), some_interop(r)));
     }},
};

const std::vector<door> doors{
    {"plan_space_of",
     [](random_source& r) {
       (void)plan_space_of(some_hardware(r), some_costs(r), one_in(r, 3) ? some_int(r) : 10, one_in(r, 2));
     }},
    {"count_plans",
     [](random_source& r) {
       plan_space space{.operators = some_count(r, 9), .layers = some_count(r, 5), .use_all_devices = one_in(r, 2)};
       for (int i = r.integer(0, 2); i > 0; --i) {
         space.ways.emplace_back();
         if (!one_in(r, 12)) space.ways.back() = {0, mostly64(r, 2), mostly64(r, 2)};
         if (!space.ways.back().empty() && one_in(r, 12)) space.ways.back()[0] = 1;
       }
       const auto n = count_plans(space);
       expect(!(n.all < n.whole_layers), "there are more with whole layers than at all");
     }},
    {"short_text",
     [](random_source& r) { expect(!short_text(plan_count(static_cast<std::uint64_t>(some_int64(r)))).empty(), "a text"); },
     false},
    {"costs_name", [](random_source& r) { expect(!costs_name(some_hardware(r), some_priced_model(r)).empty(), "a name"); }},
    {"knows_shapes_only", [](random_source& r) { (void)knows_shapes_only(some_priced_model(r)); }, false},
    {"priced_by_whole_layers", [](random_source& r) { (void)priced_by_whole_layers(some_hardware(r), some_priced_model(r)); }},
    {"flops_per_sample",
     [](random_source& r) { expect(flops_per_sample(some_priced_model(r)) >= 0, "fewer operations than none"); }},
    {"costs_on",
     [](random_source& r) {
       expect(costs_on(some_hardware(r), some_priced_model(r), some_count(r)).layer_count() > 0, "there are no layers");
     }},
    {"replica_costs_on", [](random_source& r) { (void)replica_costs_on(some_hardware(r), some_priced_model(r), some_count(r)); }},
    {"measured_sizes_text",
     [](random_source& r) { expect(!measured_sizes_text(some_hardware(r), some_priced_model(r)).empty(), "a text"); }},
    {"lacking_costs", [](random_source& r) { (void)lacking_costs(some_hardware(r), some_priced_model(r), some_count(r)); }},
    {"find_unused_calibration", [](random_source& r) { (void)find_unused_calibration(some_hardware(r), some_priced_model(r)); }},
    {"like_cases_of", [](random_source& r) { (void)like_cases_of(some_hardware(r), some_priced_model(r), one_in(r, 2)); }},
    {"evaluate",
     [](random_source& r) {
       const auto found = evaluate(some_hardware(r), some_priced_model(r), plan_of_one_stage(r));
       if (found) expect_time(found->plan.predicted.iteration_s);
     }},
    {"profile_remarks",
     [](random_source& r) { (void)profile_remarks(some_hardware(r), some_priced_model(r), plan_of_one_stage(r)); }},
    {"setting_of", [](random_source& r) { expect(!setting_of(some_hardware(r), some_priced_model(r)).costs.empty(), "a name"); }},
    {"anchored",
     [](random_source& r) {
       const auto anchor = some_anchor(r);
       expect(anchored(some_hardware(r), std::span(&anchor, 1), some_priced_model(r)).device_count() > 0, "no devices");
     }},
    {"anchor_residuals",
     [](random_source& r) {
       const auto anchor = some_anchor(r);
       const auto off = anchor_residuals(some_hardware(r), std::span(&anchor, 1), some_priced_model(r));
       expect(off.size() == 1, "a number for each anchor");
     }},
    {"request_for",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto asked = request_for(hardware, some_priced_model(r), some_request(r));
       expect(asked.lacks && asked.costs_on, "a request without costs");
     }},
    {"default_planner",
     [](random_source& r) { expect(!default_planner(some_request(r), some_priced_model(r)).name.empty(), "a name"); }, false},
    {"problem_of", [](random_source& r) { (void)problem_of(some_request(r), some_count(r)); }},
    {"planner_named",
     [](random_source& r) {
       const char* const names[] = {"interop_dp", "hexiscale", "", "none"};
       expect(!planner_named(one_of(r, names)).name.empty(), "a name");
     }},
    {"least_sum",
     [](random_source& r) {
       const auto chain = some_chain(r);
       expect_found(least_sum(chain));
     }},
    {"least_slowest", [](random_source& r) { expect_found(least_slowest(some_chain(r))); }},
    {"least_interval", [](random_source& r) { expect_found(least_interval(some_chain(r), some_count(r))); }},
    {"least_iteration",
     [](random_source& r) {
       const iteration_effort effort{.labels = mostly64(r, 100), .limits = mostly(r, 10), .near = mostly_double(r, 1e-3)};
       expect_found(least_iteration(some_chain(r), some_count(r), {}, effort));
     }},
    {"cut_of",
     [](random_source& r) {
       const auto g = some_graph(r);
       expect_time(cut_of(g, some_parts(r, g)));
     }},
    {"balance_of",
     [](random_source& r) {
       const auto g = some_graph(r);
       const auto parts = some_parts(r, g);
       expect(balance_of(g, parts, some_count(r, 3)) >= 1 - 1e-9, "less than 1");
     }},
    {"grow_and_refine",
     [](random_source& r) {
       const auto g = some_graph(r);
       const partition_request asked{.parts = some_count(r, 3), .balance = mostly_double(r, 1.1, 6), .maximise = one_in(r, 3)};
       expect(grow_and_refine(g, asked).size() == g.size(), "a part for each vertex");
     }},
    {"hand_out",
     [](random_source& r) {
       const int m = some_count(r);
       int sum = 0;
       for (const int n : hand_out(m, some_paces(r))) sum += n;
       expect(sum == m, "other microbatches");
     }},
    {"hexiscale_pace",
     [](random_source& r) {
       const auto p = some_plan(r);
       if (!p.pipelines.empty()) expect_time(hexiscale_pace(p.pipelines[0]).latency_s);
     }},
    {"hexiscale_iteration_s",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       expect_time(hexiscale_iteration_s(evaluated(r, hardware, costs)));
     }},
    {"devices_of",
     [](random_source& r) {
       const auto p = some_plan(r);
       if (!p.pipelines.empty()) (void)devices_of(some_hardware(r), p.pipelines[0]);
     }},
};

TEST_CASE("planners refuse what they cannot take") { knock(searches, 14 * static_cast<int>(searches.size())); }

TEST_CASE("public functions around planners refuse what they cannot take") { knock(doors, 4'000); }

}  // namespace
