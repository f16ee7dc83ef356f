// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <algorithm>

#include <hetsched/schedule.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/check/device_order.hpp>
#include <hetsched/schedule/check/issue_order.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/posting.hpp>
#include <hetsched/schedule/search/min_memory.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/explain_difference.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>
#include <hetsched/schedule/simulate/what_if.hpp>
#include <hetsched/schedule/text.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

constexpr int many[] = {INT_MAX, INT_MIN, INT_MAX - 1};
/// Counts of what is built: those that are not refused are small.
int built_count(random_source& r, int most = 5) { return one_in(r, 20) ? one_of(r, many) : some_count(r, most); }

void spoil(random_source& r, std::vector<double>& times) {
  if (!times.empty() && one_in(r, 2))
    one_of(r, times) = some_double(r);
  else
    times.resize(static_cast<std::size_t>(r.integer(0, static_cast<int>(times.size()) + 1)), 0.1);
}

pipeline some_pipeline(random_source& r, int stages) {
  const auto good = [&](int n) {
    std::vector<double> t;
    for (int i = 0; i < n; ++i) t.push_back(r.uniform(0.5, 2));
    return t;
  };
  pipeline p{good(stages), good(stages), good(stages - 1)};
  if (one_in(r, 2)) p.gradient_transfer_s = good(stages - 1);
  if (one_in(r, 2))
    for (const double b : p.backward_s) p.weight_backward_s.push_back(b / 2);
  if (one_in(r, 3)) p.activation_bytes = good(stages);
  if (one_in(r, 3))
    for (const double t : p.transfer_s) p.transfer_occupied_s.push_back(t / 2);
  if (one_in(r, 6))
    spoil(r, *one_of(r, std::vector{&p.forward_s, &p.backward_s, &p.transfer_s, &p.gradient_transfer_s, &p.weight_backward_s,
                                    &p.activation_bytes, &p.transfer_occupied_s, &p.gradient_transfer_occupied_s}));
  return p;
}
pipeline some_pipeline(random_source& r) { return some_pipeline(r, r.integer(1, 4)); }

schedule sound_schedule(random_source& r) {
  const int ranks = 2 * r.integer(1, 2), m = r.integer(1, 5);
  switch (r.integer(0, 9)) {
    case 0:
      return gpipe(ranks, m);
    case 1:
      return interleaved_1f1b(ranks, 2, m);
    case 2:
      return zb_h1(ranks, m);
    case 3:
      return dualpipe(ranks, m);
    case 4:
      return chimera(ranks, m);
    case 5:
      return forward_schedule(ranks, m);
    case 6:
      return add_transfers(zb_v(ranks, m));
    case 7:
      return split_streams(add_transfers(gpipe(ranks, m)));
    case 8:
      return by_way_of_hosts(gpipe(ranks, m), [](int from, int) { return from == 0; });
    default:
      return group_transfers(add_transfers(zb_h2(ranks, m)));
  }
}

schedule some_schedule(random_source& r) {
  auto s = sound_schedule(r);
  for (int faults = one_in(r, 2) ? r.integer(1, 2) : 0; faults > 0; --faults) {
    auto& l = one_of(r, s.lanes);
    switch (r.integer(0, 11)) {
      case 0:
        s.ranks = some_int(r);
        break;
      case 1:
        s.stages = some_int(r);
        break;
      case 2:
        s.directions = some_int(r);
        break;
      case 3:
        s.microbatches = some_int(r);
        break;
      case 4:
        if (!s.rank_of.empty()) one_of(r, s.rank_of) = some_int(r);
        break;
      case 5:
        s.rank_of.resize(as_size(r.integer(0, static_cast<int>(s.rank_of.size()) + 1)));
        break;
      case 6:
        l.rank = some_int(r);
        break;
      case 7:
        l.peer = some_int(r);
        break;
      case 8:
        if (s.lanes.size() > 1) s.lanes.pop_back();
        break;
      case 9:
        if (!l.actions.empty()) l.actions.erase(l.actions.begin() + r.integer(0, static_cast<int>(l.actions.size()) - 1));
        break;
      default:
        if (l.actions.empty()) break;
        auto& a = one_of(r, l.actions);
        if (one_in(r, 3)) a.kind = static_cast<action_kind>(r.integer(0, 255) / 4);
        if (one_in(r, 3)) a.stage = some_int(r);
        if (one_in(r, 3)) a.microbatch = some_int(r);
        if (one_in(r, 3)) a.direction = static_cast<std::int16_t>(some_int(r));
        if (one_in(r, 4)) a.joined = !a.joined;
    }
  }
  return s;
}

workload some_workload(random_source& r, const schedule& order) {
  workload w;
  try {
    w = make_workload(some_pipeline(r, order.ranks > 0 && order.ranks < 9 ? order.ranks : 2), order);
  } catch (const error&) {
    w = make_workload(pipeline{{1, 1}, {1, 1}, {0.1}}, gpipe(2, 2));
  }
  if (one_in(r, 8)) w.memory_capacity.assign(as_size(r.integer(0, 4)), some_double(r));
  if (!one_in(r, 4)) return w;
  auto& path = w.activations.empty() ? w.gradients : w.activations;
  switch (r.integer(0, 8)) {
    case 0:
      w.ranks = some_int(r);
      break;
    case 1:
      w.stages = some_int(r);
      break;
    case 2:
      w.directions = some_int(r);
      break;
    case 3:
      w.work.pop_back();
      break;
    case 4:
      one_of(r, w.work).forward_s = some_double(r);
      break;
    case 5:
      if (!path.empty()) one_of(r, path).network.wires[0] = some_int(r);
      break;
    case 6:
      if (!path.empty()) one_of(r, path).network.latency_s = some_double(r);
      break;
    case 7:
      w.fused_factor = some_double(r);
      break;
    default:
      if (!w.wires.empty()) one_of(r, w.wires).capacity = some_int(r);
  }
  return w;
}

timeline sound_timeline(random_source& r) {
  const auto order = sound_schedule(r);
  return simulate(make_workload(
                      pipeline{std::vector<double>(as_size(order.ranks), 1.0), std::vector<double>(as_size(order.ranks), 2.0),
                               std::vector<double>(as_size(order.ranks) - 1, 0.1)},
                      order),
                  order)
      .timeline;
}
timeline spoilt(random_source& r, timeline t) {
  if (!one_in(r, 2)) return t;
  auto& a = one_of(r, t.actions);
  switch (r.integer(0, 8)) {
    case 0:
      t.ranks = some_int(r);
      break;
    case 1:
      t.microbatches = some_int(r);
      break;
    case 2:
      a.what.kind = static_cast<action_kind>(r.integer(0, 255) / 4);
      break;
    case 3:
      a.what.stage = some_int(r);
      break;
    case 4:
      a.what.microbatch = some_int(r);
      break;
    case 5:
      a.what.direction = static_cast<std::int16_t>(some_int(r));
      break;
    case 6:
      a.rank = some_int(r);
      break;
    case 7:
      a.peer = some_int(r);
      break;
    default:
      (one_in(r, 2) ? a.start_s : a.end_s) = some_double(r);
  }
  return t;
}
timeline some_timeline(random_source& r) { return spoilt(r, sound_timeline(r)); }

std::vector<int> some_counts(random_source& r, int size) {
  std::vector<int> counts;
  if (one_in(r, 12)) size += r.integer(-1, 1);
  for (int i = 0; i < size; ++i) counts.push_back(one_in(r, 15) ? some_int(r) : size - i);
  return counts;
}

simulate_options some_way(random_source& r) {
  return {.semantics = one_in(r, 2) ? send_semantics::buffered : send_semantics::rendezvous};
}

issue_order some_issued(random_source& r, const schedule& order) {
  issue_order issued;
  try {
    issued = find_issue_order(order).order;
  } catch (const error&) {
    issued.of_rank.resize(2);
  }
  if (!one_in(r, 3) || issued.of_rank.empty()) return issued;
  auto& list = one_of(r, issued.of_rank);
  if (one_in(r, 3))
    issued.of_rank.pop_back();
  else if (!list.empty())
    one_of(r, list) = {.kind = static_cast<action_kind>(r.integer(0, 60)), .stage = some_int(r), .microbatch = some_int(r)};
  return issued;
}

device_program some_program(random_source& r) {
  device_program p{.devices = one_in(r, 10) ? -some_count(r) / 2 : r.integer(1, 3), .steps = {}};
  for (int i = 0, n = r.integer(0, 5); i < n; ++i) {
    device_step s;
    s.kind = static_cast<device_step_kind>(r.integer(0, 3));
    for (int d = 0; d < (s.kind == device_step_kind::computation ? 1 : 2); ++d) s.members.push_back(mostly(r, d, 30));
    if (i > 0) s.needs.push_back(mostly(r, i - 1, 30));
    s.what.kind = action_kind::send_activation;
    p.steps.push_back(s);
  }
  return p;
}

auto_options some_auto(random_source& r, int stages) {
  auto_options o{.rounds = 1};
  if (one_in(r, 2)) o.memory_capacity = one_in(r, 2) ? std::vector<double>(as_size(stages), 3.0) : some_times(r, stages);
  if (one_in(r, 6)) o.weight_backward_share = some_double(r);
  if (one_in(r, 10)) o.rounds = -1;
  return o;
}

const std::vector<door> doors{
    {"make_schedule",
     [](random_source& r) { (void)make_schedule(built_count(r), built_count(r), some_counts(r, 3), built_count(r, 3)); }},
    {"is_forward_only", [](random_source& r) { (void)is_forward_only(some_schedule(r)); }},
    {"lists", [](random_source& r) { (void)lists(some_schedule(r), static_cast<action_kind>(r.integer(0, 255))); }, false},
    {"to_text",
     [](random_source& r) {
       (void)to_text(action{static_cast<action_kind>(r.integer(0, 255)), false, 1, some_int(r), some_int(r)});
     },
     false},
    {"memory_over_time",
     [](random_source& r) {
       const auto order = sound_schedule(r);
       const auto w = some_workload(r, order);
       timeline t;
       try {
         t = simulate(w, order).timeline;
       } catch (const error&) {
         t = sound_timeline(r);
       }
       (void)memory_over_time(w, spoilt(r, t));
     }},
    {"makespan_lower_bound",
     [](random_source& r) {
       const auto order = some_schedule(r);
       switch (r.integer(0, 2)) {
         case 0:
           return expect_time(makespan_lower_bound(some_pipeline(r), one_in(r, 8) ? some_int(r) : 3) * 1e-300);
         case 1:
           return (void)makespan_lower_bound(some_workload(r, order), order);
         default:
           return (void)makespan_lower_bound(some_pipeline(r), some_workload(r, order), order);
       }
     }},
    {"split_backward_lower_bound",
     [](random_source& r) { (void)split_backward_lower_bound(some_pipeline(r), one_in(r, 8) ? some_int(r) : 3); }},
    {"one_stage_per_rank", [](random_source& r) { (void)one_stage_per_rank(some_schedule(r)); }, false},
    {"chimera", [](random_source& r) { (void)chimera(built_count(r), built_count(r)); }},
    {"dualpipe", [](random_source& r) { (void)dualpipe(built_count(r), built_count(r)); }},
    {"dualpipe_v", [](random_source& r) { (void)dualpipe_v(built_count(r), built_count(r)); }},
    {"interleaved_1f1b", [](random_source& r) { (void)interleaved_1f1b(built_count(r), built_count(r, 3), built_count(r)); }},
    {"looped_bfs", [](random_source& r) { (void)looped_bfs(built_count(r), built_count(r, 3), built_count(r)); }},
    {"build_schedule",
     [](random_source& r) {
       const auto names = schedule_names();
       build_options o;
       o.epsilon = some_time(r);
       o.chunks = built_count(r, 3);
       if (one_in(r, 3)) o.warmups = some_counts(r, 2);
       if (one_in(r, 3)) o.caps = some_counts(r, 2);
       if (one_in(r, 3)) o.cross.resize(as_size(r.integer(0, 2)));
       (void)build_schedule(one_in(r, 20) ? "none" : one_of(r, names), some_pipeline(r, 2), built_count(r), o);
       (void)build_schedule(static_cast<schedule_id>(mostly(r, r.integer(0, 16))), some_pipeline(r, 2), built_count(r), o);
     }},
    {"schedule_named", [](random_source& r) { (void)schedule_named(one_in(r, 2) ? "zb_v" : ""); }},
    {"find_schedule_id", [](random_source& r) { (void)find_schedule_id(one_in(r, 2) ? "zb_v" : ""); }, false},
    {"name_of", [](random_source& r) { (void)name_of(static_cast<schedule_id>(some_int(r))); }, false},
    {"id_of", [](random_source& r) { (void)name_of(id_of(static_cast<warmup_rule>(some_int(r)))); }, false},
    {"has_warmups",
     [](random_source& r) {
       (void)has_warmups(static_cast<schedule_id>(some_int(r)));
       (void)has_warmups(one_in(r, 2) ? "1f1b" : "");
     },
     false},
    {"validate_warmups", [](random_source& r) { validate_warmups(some_counts(r, 3), some_int(r)); }},
    {"one_f_one_b", [](random_source& r) { (void)one_f_one_b(some_counts(r, 3), built_count(r)); }},
    {"gpipe", [](random_source& r) { (void)gpipe(built_count(r), built_count(r)); }},
    {"forward_schedule", [](random_source& r) { (void)forward_schedule(built_count(r), built_count(r)); }},
    {"period", [](random_source& r) { expect_time(period(some_pipeline(r, 3), some_counts(r, 3))); }},
    {"fastest_period", [](random_source& r) { expect(fastest_period(some_pipeline(r, 3), some_counts(r, 3)) >= 0, "a period"); }},
    {"exact_warmups_within", [](random_source& r) { (void)exact_warmups_within(some_pipeline(r, 3), some_counts(r, 3)); }},
    {"gpipe_period", [](random_source& r) { expect_time(gpipe_period(some_pipeline(r))); }},
    {"zb_v", [](random_source& r) { (void)zb_v(built_count(r), built_count(r)); }},
    {"v_half", [](random_source& r) { (void)v_half(built_count(r), built_count(r)); }},
    {"v_min", [](random_source& r) { (void)v_min(built_count(r), built_count(r)); }},
    {"virtual_1f1b_warmups", [](random_source& r) { (void)virtual_1f1b_warmups(std::vector<bool>(as_size(r.integer(0, 9)))); },
     false},
    {"slow_boundaries", [](random_source& r) { (void)slow_boundaries(some_pipeline(r), some_time(r)); }},
    {"virtual_1f1b", [](random_source& r) { (void)virtual_1f1b(std::vector<bool>(as_size(r.integer(0, 5))), built_count(r)); }},
    {"best_period", [](random_source& r) { expect_time(best_period(some_pipeline(r))); }},
    {"h1f1b_step", [](random_source& r) { expect(h1f1b_step(some_time(r), some_time(r), some_time(r)) >= 1, "a step"); }},
    {"exact_step",
     [](random_source& r) { expect(exact_step(some_time(r), some_time(r), some_time(r), some_time(r)).warmup >= 1, "a step"); }},
    {"one_f_one_b_warmups", [](random_source& r) { (void)one_f_one_b_warmups(built_count(r)); }},
    {"eager_warmups", [](random_source& r) { (void)eager_warmups(built_count(r)); }},
    {"h1f1b_warmups",
     [](random_source& r) {
       if (one_in(r, 2)) return (void)h1f1b_warmups(some_pipeline(r), one_in(r, 2) ? 10 : some_double(r), some_time(r));
       (void)h1f1b_warmups(some_times(r, 3), some_times(r, 2), some_time(r));
     }},
    {"exact_warmups",
     [](random_source& r) {
       if (one_in(r, 2)) return (void)exact_warmups(some_pipeline(r), one_in(r, 2) ? 10 : some_double(r));
       (void)exact_warmups(some_times(r, 3), some_times(r, 2));
     }},
    {"warmup_counts",
     [](random_source& r) {
       if (one_in(r, 2)) return (void)warmup_counts(some_schedule(r));
       (void)warmup_counts(static_cast<warmup_rule>(mostly(r, r.integer(0, 3))), some_pipeline(r), some_time(r));
     }},
    {"capped_warmups", [](random_source& r) { (void)capped_warmups(some_counts(r, 3), some_counts(r, 3)); }},
    {"split_1f1b", [](random_source& r) { (void)split_1f1b(some_counts(r, 3), some_counts(r, 3), built_count(r)); }},
    {"zb_h1", [](random_source& r) { (void)zb_h1(built_count(r), built_count(r)); }},
    {"zb_h2", [](random_source& r) { (void)zb_h2(built_count(r), built_count(r)); }},
    {"check",
     [](random_source& r) {
       const auto order = some_schedule(r);
       check_options o;
       if (one_in(r, 3)) o.in_flight_caps = some_counts(r, 2);
       if (one_in(r, 5)) o.most_findings = 0;
       if (one_in(r, 2)) return (void)check(order, o);
       (void)check(order, some_workload(r, order), o);
     }},
    {"peak_memory",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)peak_memory(order, some_workload(r, order));
     }},
    {"check_device_order",
     [](random_source& r) {
       const auto p = some_program(r);
       device_order o;
       for (int d = 0; d < p.devices; ++d) o.of_device.push_back({mostly(r, 0), some_int(r)});
       (void)check_device_order(p, o);
     }},
    {"find_device_order",
     [](random_source& r) {
       const auto p = some_program(r);
       const auto found = find_device_order(p);
       if (found.cycles.empty()) expect(check_device_order(p, found.order).empty(), "an order");
     }},
    {"check_issue_order",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)check_issue_order(order, some_issued(r, order));
     }},
    {"find_issue_order", [](random_source& r) { (void)find_issue_order(some_schedule(r)); }},
    {"group_exchanges",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)group_exchanges(order, some_issued(r, order));
     }},
    {"group_relays",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)group_relays(order, some_issued(r, order));
     }},
    {"dependencies",
     [](random_source& r) {
       const auto order = some_schedule(r), other = sound_schedule(r);
       const action_index index(one_in(r, 5) ? other : order);
       (void)dependencies(order, index);
     }},
    {"action_index",
     [](random_source& r) {
       const auto order = some_schedule(r);
       expect(action_index(order).size() >= 0, "an index");
     }},
    {"add_transfers", [](random_source& r) { (void)add_transfers(some_schedule(r)); }},
    {"stage_transfers", [](random_source& r) { (void)stage_transfers(some_schedule(r), [](int a, int) { return a == 0; }); }},
    {"group_transfers", [](random_source& r) { (void)group_transfers(some_schedule(r)); }},
    {"split_streams", [](random_source& r) { (void)split_streams(some_schedule(r)); }},
    {"by_way_of_hosts", [](random_source& r) { (void)by_way_of_hosts(some_schedule(r), [](int a, int) { return a == 0; }); }},
    {"forwards_of", [](random_source& r) { (void)forwards_of(some_schedule(r)); }},
    {"forward_part", [](random_source& r) { validate(forward_part(some_pipeline(r))); }},
    {"validate",
     [](random_source& r) {
       if (one_in(r, 2)) return validate(some_pipeline(r));
       validate(some_workload(r, sound_schedule(r)));
     }},
    {"post_transfers", [](random_source& r) { (void)post_transfers(some_schedule(r)); }},
    {"without_marks", [](random_source& r) { (void)without_marks(some_schedule(r)); }},
    {"torch_order", [](random_source& r) { (void)torch_order(some_schedule(r)); }},
    {"line_map", [](random_source& r) { (void)line_map(built_count(r)); }},
    {"loop_map", [](random_source& r) { (void)loop_map(built_count(r), built_count(r)); }},
    {"v_map", [](random_source& r) { (void)v_map(built_count(r)); }},
    {"bidirectional_map", [](random_source& r) { (void)bidirectional_map(built_count(r)); }},
    {"side_by_side",
     [](random_source& r) {
       (void)side_by_side({some_timeline(r), some_timeline(r)});
     }},
    {"to_csv", [](random_source& r) { (void)to_csv(some_schedule(r)); }},
    {"parse_schedule_csv",
     [](random_source& r) {
       auto text = to_csv(sound_schedule(r));
       if (one_in(r, 2)) one_of(r, text) = static_cast<char>(r.integer(0, 127));
       if (one_in(r, 4)) text.insert(as_size(r.integer(0, static_cast<int>(text.size()))), "99999999999");
       (void)parse_schedule_csv(text);
     }},
    {"make_workload",
     [](random_source& r) {
       const auto order = some_schedule(r);
       validate(make_workload(some_pipeline(r, order.ranks > 0 && order.ranks < 9 ? order.ranks : 2), order));
     }},
    {"simulate",
     [](random_source& r) {
       const auto order = some_schedule(r);
       switch (r.integer(0, 2)) {
         case 0:
           return expect(simulate(some_workload(r, order), order, some_way(r)).makespan_s >= 0, "a makespan");
         case 1:
           return expect(simulate(some_pipeline(r, 2), order, some_way(r)).makespan_s >= 0, "a makespan");
         default:
           return expect(simulate(some_pipeline(r, 3), some_counts(r, 3), built_count(r)).makespan_s >= 0, "a makespan");
       }
     }},
    {"figures", [](random_source& r) { (void)figures(some_timeline(r)); }},
    {"from_departure", [](random_source& r) { (void)from_departure(some_timeline(r)); }},
    {"compare_timelines",
     [](random_source& r) {
       const auto t = sound_timeline(r);
       (void)compare_timelines(spoilt(r, t), spoilt(r, t));
     }},
    {"explain_difference",
     [](random_source& r) {
       const auto t = sound_timeline(r);
       (void)explain_difference(spoilt(r, t), spoilt(r, t));
     }},
    {"critical_path",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)critical_path(some_workload(r, order), order, some_way(r));
     }},
    {"stage_ends", [](random_source& r) { (void)stage_ends(some_pipeline(r, 3), some_counts(r, 3), some_count(r)); }},
    {"makespan", [](random_source& r) { (void)makespan(some_pipeline(r, 3), some_counts(r, 3), some_count(r)); }},
    {"with_factors",
     [](random_source& r) {
       const auto order = some_schedule(r);
       const auto w = some_workload(r, order);
       (void)with_factors(w, order, some_times(r, order.ranks > 0 && order.ranks < 9 ? order.ranks : 2),
                          some_times(r, static_cast<int>(w.wires.size())));
     }},
    {"makespans_under_jitter",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)makespans_under_jitter(some_workload(r, order), order, {.spread = some_time(r), .samples = some_count(r, 3)});
     }},
    {"quantile",
     [](random_source& r) {
       const std::vector<double> values(as_size(r.integer(0, 4)), 1.0);
       (void)quantile(values, one_in(r, 2) ? r.uniform() : some_double(r));
     }},
    {"with_free_rank",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)with_free_rank(some_workload(r, order), order, mostly(r, 0));
     }},
    {"with_free_wire", [](random_source& r) { (void)with_free_wire(some_workload(r, sound_schedule(r)), mostly(r, 0)); }},
    {"what_if",
     [](random_source& r) {
       const auto order = some_schedule(r);
       (void)what_if(some_workload(r, order), order, some_way(r));
     }},
    {"auto_schedule",
     [](random_source& r) {
       const int stages = r.integer(1, 3);
       if (const auto found = auto_schedule(some_pipeline(r, stages), built_count(r, 4), some_auto(r, stages)))
         expect(check(found->order).empty(), "a schedule");
     }},
    {"min_memory",
     [](random_source& r) {
       const int stages = r.integer(1, 2);
       (void)min_memory(some_pipeline(r, stages), built_count(r, 3), one_in(r, 2) ? 50 : some_double(r), some_auto(r, stages));
     }},
    {"auto_with_little_memory",
     [](random_source& r) {
       const int stages = r.integer(1, 2);
       (void)auto_with_little_memory(some_pipeline(r, stages), built_count(r, 3), some_auto(r, stages));
     }},
};

TEST_CASE("public functions of schedule refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
