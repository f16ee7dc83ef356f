// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/plan.hpp>
#include <hetsched/plan/gradient_groups.hpp>
#include <hetsched/plan/nccl_channels.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/plan/transport.hpp>
#include <hetsched/plan/validate.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Stages on half a node each.
pipeline_plan some_line(random_source& r, int stages, int first_node = 0) {
  pipeline_plan line{.microbatches = mostly(r, 4, 30), .microbatch_size = mostly(r, 8, 30), .schedule = {.name = "1f1b"}};
  for (int i = 0; i < stages; ++i) {
    stage_plan s{.layers = {2 * i, 2 * i + 2}, .devices = {{{0, 1, 2}, 4 * first_node + 2 * i}}, .degrees = {.data = 2}};
    if (one_in(r, 4)) s.devices = {{{0, 1, 1}, 2 * i}, {{1, 1, 1}, 2 * i}};
    s.cost = {.forward_s = some_time(r, 40), .backward_s = some_time(r, 40), .weight_bytes = 100, .activation_bytes = 10};
    s.memory_capacity_bytes = mostly64(r, gib, 30);
    if (one_in(r, 6)) s.shares.data = some_times(r, 2);
    if (one_in(r, 6)) s.shares.tensor = some_times(r, 2);
    if (one_in(r, 6)) s.shares.state = some_times(r, 2);
    line.stages.push_back(s);
    if (i > 0) line.boundaries.push_back({.forward_s = some_time(r, 40), .backward_s = some_time(r, 40)});
  }
  if (!one_in(r, 3)) return line;
  auto& s = one_of(r, line.stages);
  switch (r.integer(0, 9)) {
    case 0:
      s.layers = {some_int(r), some_int(r)};
      break;
    case 1:
      s.devices.clear();
      break;
    case 2:
      s.devices[0].mesh = {mostly(r, 0, 2), mostly(r, 1, 2), mostly(r, 2, 2)};
      break;
    case 3:
      s.devices[0].first_device = some_int(r);
      break;
    case 4:
      s.degrees = {mostly(r, 2, 2), mostly(r, 1, 2), mostly(r, 1, 2), mostly(r, 1, 2)};
      break;
    case 5:
      s.warmup = some_int(r);
      s.zero = some_int(r);
      break;
    case 6:
      s.cost.weight_bytes = some_int64(r);
      s.cost.temporary_bytes = some_int64(r);
      break;
    case 7:
      s.overheads.runtime_bytes = some_int64(r);
      s.overheads.margin = some_double(r);
      break;
    case 8:
      line.boundaries.pop_back();
      break;
    default:
      line.stages.pop_back();
  }
  if (one_in(r, 12)) line.stages.clear();
  return line;
}
pipeline_plan some_line(random_source& r) { return some_line(r, 2); }

plan some_plan(random_source& r) {
  plan p;
  for (int l = 0, n = one_in(r, 12) ? 0 : r.integer(1, 2); l < n; ++l) p.pipelines.push_back(some_line(r, 2, l));
  p.objective = static_cast<plan_objective>(r.integer(0, 3));
  p.predicted.iteration_s = 1;
  if (one_in(r, 2)) p.predicted.cost_per_sample = 1;
  return p;
}

inference_plan some_inference_plan(random_source& r) {
  const auto line = some_line(r, 2);
  inference_plan p{.objective = static_cast<plan_objective>(r.integer(one_in(r, 6) ? 0 : 2, 3)),
                   .in_flight = line.microbatches,
                   .batch_size = line.microbatch_size,
                   .stages = line.stages,
                   .boundaries = line.boundaries};
  if (!one_in(r, 6)) p.predicted = inference_prediction{.latency_s = 1, .requests_per_s = some_time(r)};
  return p;
}

std::vector<device_group> some_groups(random_source& r) {
  std::vector<device_group> groups;
  for (int i = one_in(r, 8) ? 0 : 1; i > 0; --i)
    groups.push_back({{mostly(r, r.integer(0, 1)), mostly(r, 1), mostly(r, 2)}, mostly(r, r.integer(0, 4))});
  return groups;
}

plan_target some_target(random_source& r) {
  auto t = one_of(r, plan_targets());
  if (one_in(r, 4)) t.name.clear();
  if (one_in(r, 4)) t.most = {some_int(r), some_int(r), some_int(r), some_int(r)};
  if (one_in(r, 4)) t.zero = {some_int(r)};
  if (one_in(r, 4)) t.recompute.clear();
  if (one_in(r, 4)) t.schedules = {static_cast<schedule_id>(some_int(r))};
  return t;
}

void name_schedule(random_source& r, pipeline_plan& line) {
  const std::vector<std::string> names{"1f1b", "h1f1b", "gpipe", "virtual_1f1b", "exact_1f1b", "auto", "none", "zb_h1"};
  line.schedule.name = one_of(r, names);
  if (!one_in(r, 3)) return;
  line.schedule.actions = one_in(r, 2) ? zb_h1(2, 4) : gpipe(2, 4);
  auto& order = *line.schedule.actions;
  if (one_in(r, 6)) order.lanes.pop_back();
  if (one_in(r, 6)) order.ranks = some_int(r);
  if (one_in(r, 6)) order.stages = some_int(r);
  if (one_in(r, 6)) order.rank_of.clear();
  if (one_in(r, 6) && !order.lanes[0].actions.empty()) {
    auto& a = one_of(r, order.lanes[0].actions);
    a = {.kind = static_cast<action_kind>(r.integer(0, 60)), .stage = some_int(r), .microbatch = some_int(r)};
  }
}
/// Legal microbatches that are too many to list here are left out.
bool is_small(const pipeline_plan& line) { return line.microbatches < 100 || line.microbatches > (1 << 30); }

const std::vector<door> doors{
    {"validate",
     [](random_source& r) {
       if (one_in(r, 4)) return validate(hardware(), some_inference_plan(r), mostly(r, 4));
       validate(hardware(), some_plan(r), mostly(r, 4));
     }},
    {"forward_pipeline", [](random_source& r) { (void)forward_pipeline(some_inference_plan(r)); }, false},
    {"validate", [](random_source& r) { validate(some_target(r)); }},
    {"gaps",
     [](random_source& r) {
       for (const auto& gap : gaps(some_plan(r), some_target(r))) expect(!to_text(gap).empty(), "a text");
     }},
    {"gaps on a cluster",
     [](random_source& r) {
       for (const auto& gap : gaps(some_plan(r), some_target(r), hardware())) expect(!to_text(gap).empty(), "a text");
     }},
    {"joined_by_nccl", [](random_source& r) { (void)joined_by_nccl(hardware(), mostly(r, 0), mostly(r, 1)); }},
    {"to_text", [](random_source&) { expect(!to_text(target_gap{}).empty(), "a text"); }, false},
    {"can_run", [](random_source& r) { (void)can_run(some_plan(r), some_target(r)); }},
    {"unlike_pipelines",
     [](random_source& r) {
       auto p = some_plan(r);
       if (!p.pipelines.empty()) p.pipelines.push_back(p.pipelines.front());
       if (const auto found = unlike_pipelines(p)) expect(!to_text(*found).empty(), "a text");
     }},
    {"allows",
     [](random_source& r) {
       const auto t = some_target(r);
       (void)allows(t, placement{.degrees = {some_int(r), some_int(r), some_int(r), some_int(r)}, .zero = some_int(r)});
       (void)allows(t, "1f1b");
       (void)allows(t, static_cast<schedule_id>(some_int(r)));
     },
     false},
    {"parts_backwards",
     [](random_source& r) {
       const char* const names[] = {"1f1b", "zb_v", "auto", "", "none"};
       (void)parts_backwards(one_of(r, names));
       (void)parts_backwards(static_cast<schedule_id>(some_int(r)));
     }},
    {"space_of", [](random_source& r) { (void)space_of(some_target(r)); }, false},
    {"gradient_groups", [](random_source& r) { (void)gradient_groups(some_plan(r)); }},
    {"objective_of",
     [](random_source& r) {
       expect((one_in(r, 2) ? objective_of(some_plan(r)) : objective_of(some_inference_plan(r))) >= 0, "an objective");
     }},
    {"microbatch_count", [](random_source& r) { expect(microbatch_count(some_plan(r)) >= 0, "a count"); }},
    {"sample_count", [](random_source& r) { expect(sample_count(some_plan(r)) >= 0, "a count"); }},
    {"stage_with", [](random_source& r) { (void)stage_with(some_line(r), some_int(r)); }},
    {"to_pipeline", [](random_source& r) { (void)to_pipeline(some_line(r)); }, false},
    {"warmups", [](random_source& r) { (void)warmups(some_line(r)); }, false},
    {"activation_room",
     [](random_source& r) {
       const auto line = some_line(r);
       for (const auto& s : line.stages) expect(activation_room(s) >= 0, "a room");
     }},
    {"activation_rooms", [](random_source& r) { (void)activation_rooms(some_line(r)); }},
    {"subcluster_boundaries", [](random_source& r) { (void)subcluster_boundaries(some_line(r)); }},
    {"id_of", [](random_source& r) { (void)id_of(schedule_plan{.name = one_in(r, 2) ? "1f1b" : ""}); }, false},
    {"has_warmups", [](random_source& r) { (void)has_warmups(schedule_plan{.name = one_in(r, 2) ? "1f1b" : ""}); }, false},
    {"family_warmups",
     [](random_source& r) {
       auto line = some_line(r);
       name_schedule(r, line);
       (void)family_warmups(line, to_pipeline(one_in(r, 8) ? some_line(r) : line), some_time(r));
     }},
    {"order_of",
     [](random_source& r) {
       auto line = some_line(r);
       name_schedule(r, line);
       if (is_small(line)) (void)order_of(line, one_in(r, 2) ? some_times(r, 2) : std::vector<double>{}, some_time(r));
     }},
    {"set_order",
     [](random_source& r) {
       auto line = some_line(r), named = line;
       name_schedule(r, named);
       if (is_small(line)) set_order(line, named.schedule.name, named.schedule.actions.value_or(gpipe(2, 4)));
     }},
    {"is_mixed", [](random_source& r) { (void)is_mixed(some_groups(r)); }, false},
    {"parts_of",
     [](random_source& r) {
       const auto line = some_line(r);
       for (const auto& s : line.stages)
         for (const auto& p : parts_of(s, line.microbatch_size, mostly(r, 8))) expect(p.samples >= 1, "a part");
     }},
    {"share_state",
     [](random_source& r) {
       auto line = some_line(r);
       for (auto& s : line.stages) {
         s.zero = mostly(r, 1);
         const auto parts = parts_of(s, 8, 8);
         parts_cost cost;
         for (std::size_t k = 0; k < parts.size(); ++k)
           cost.parts.push_back(
               {.weight_bytes = mostly64(r, 9), .gradient_bytes = mostly64(r, 3), .optimizer_bytes = mostly64(r, 3)});
         if (one_in(r, 8)) cost.parts.pop_back();
         share_state(s, parts, cost);
       }
     }},
    {"nccl_channels", [](random_source& r) { (void)nccl_channels(some_int(r)); }, false},
    {"nccl_channels_text", [](random_source& r) { (void)nccl_channels_text(some_int(r)); }, false},
    {"choose_transport", [](random_source& r) { (void)choose_transport(hardware(), some_groups(r), some_groups(r)); }},
};

TEST_CASE("public functions of plan refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
