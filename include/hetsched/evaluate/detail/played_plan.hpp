// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/cost/questions/parts.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/gradient_groups.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

namespace detail {

/// The state of all stages that a rank holds: those of bidirectional schedules hold one of each direction.
[[nodiscard]] inline stage_cost held_by(const pipeline_plan& line, const schedule& order, std::size_t rank) {
  auto held = line.stages[rank].cost;
  for (int c = 1; c < order.directions; ++c)
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      if (order.rank(c, static_cast<int>(i)) != static_cast<int>(rank)) continue;
      const auto& other = line.stages[i].cost;
      held.weight_bytes = checked_add(held.weight_bytes, other.weight_bytes);
      held.gradient_bytes = checked_add(held.gradient_bytes, other.gradient_bytes);
      held.optimizer_bytes = checked_add(held.optimizer_bytes, other.optimizer_bytes);
      held.temporary_bytes = std::max(held.temporary_bytes, other.temporary_bytes);
    }
  return held;
}

struct played_pipeline {
  pipeline_evaluation parts;
  double lower_bound_s = 0;  ///< of its makespan
  bool ends_first = false;   ///< its first stage ends last under any order: whole backwards end there
  double period_s = 0;
};

/// Fills in a stage's warm-up and memory; `held`: what its rank holds.
inline void settle(stage_plan& s, int warmup, const stage_cost& held, stage_evaluation& found) {
  s.warmup = warmup;
  found.memory = memory_of(held, s.overheads, found.in_flight);
  s.memory_bytes = found.memory.total();
}

/// Plays a priced pipeline of the 1F1B family.
[[nodiscard]] inline played_pipeline play_family(pipeline_plan& line, const pipeline& bare, const evaluate_options& options) {
  played_pipeline result;
  auto counts = family_warmups(line, bare, options.epsilon);
  for (int& n : counts) n = std::min(n, line.microbatches);
  const auto ends = stage_ends(bare, counts, line.microbatches);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    result.parts.stages.push_back({.in_flight = static_cast<double>(counts[i]), .end_s = ends[i]});
    settle(line.stages[i], counts[i], line.stages[i].cost, result.parts.stages[i]);
  }
  result.ends_first = true;
  result.period_s = period(bare, counts);
  result.lower_bound_s = std::min(makespan_lower_bound(bare, line.microbatches), *std::max_element(ends.begin(), ends.end()));
  return result;
}

/// Plays a priced pipeline.
[[nodiscard]] inline outcome<played_pipeline> play(pipeline_plan& line, const evaluate_options& options) {
  auto bare = to_pipeline(line);
  bare.activation_bytes.clear();  // then memory is counted in microbatches
  if (has_warmups(line.schedule)) return play_family(line, bare, options);
  std::vector<double> room;
  for (const auto& s : line.stages) room.push_back(activation_room(s));
  auto found = order_of(line, room, options.epsilon, options.progress);
  if (!found) return found.why_not();
  auto& order = found->order;
  const auto work = make_workload(bare, order);
  const auto played = simulate(work, order, {.timeline = false});
  const auto counts = warmup_counts(order);
  played_pipeline result;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    result.parts.stages.push_back({.in_flight = played.peak_memory_bytes[i], .end_s = played.rank_end_s[i]});
    settle(line.stages[i], counts[i], held_by(line, order, i), result.parts.stages[i]);
  }
  const auto id = id_of(line.schedule);
  const auto* known = find_builder(id);
  result.period_s = known && known->period_s ? known->period_s(bare) : played.period_s;
  result.ends_first =
      order.directions == 1 && order.rank(0, 0) == 0 && !is_forward_only(order) && !lists(order, action_kind::backward_weight);
  // Equal bounds differ by rounding.
  result.lower_bound_s = std::min(std::max(found->lower_bound_s, makespan_lower_bound(bare, work, order)), played.makespan_s);
  if (id == schedule_id::searched && !line.schedule.actions) line.schedule.actions = std::move(order);
  return result;
}

/// Throws input_error unless a plan has what evaluate fills in: times of its stages and boundaries, and of the reductions between
/// its pipelines.
inline void require_evaluated(const plan& p) {
  expect_count(static_cast<std::int64_t>(p.pipelines.size()), "pipelines of the plan");
  static_cast<void>(microbatch_count(p));
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    expect_size(line.boundaries.size() + 1, line.stages.size(), "boundaries and one more", "one per stage");
    validate(to_pipeline(line));
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      expect_natural(line.stages[i].update_s, stage_name(p, l, i) + ": update_s");
      if (line.stages[i].layers.size() < 1) throw input_error(stage_name(p, l, i) + ": it has no layers");
    }
    for (const auto& c : line.copy_sync) {
      expect_natural(c.seconds, "seconds of copy_sync");
      for (const int layer : {c.owner, c.layer}) static_cast<void>(stage_with(line, layer));
    }
  }
  expect_size(p.gradient_sync.size(), gradient_groups(p).size(), "gradient_sync", "one per layers that pipelines share");
  for (const auto& g : p.gradient_sync) expect_natural(g.seconds, "seconds of gradient_sync");
}
/// The same on devices of a cluster.
inline void require_evaluated(const plan& p, const cluster& hardware) {
  require_evaluated(p);
  validate(hardware, p, p.pipelines.front().stages.back().layers.last);
}

/// Adds up gradients between pipelines, last layers first, then those of shared parameters inside each, and then updates: when
/// the last stage is done. A reduction starts when all its stages are free.
[[nodiscard]] inline double finish_iteration(const plan& p, const std::vector<pipeline_evaluation>& played) {
  std::vector<std::vector<double>> free_s;
  for (const auto& line : played) {
    auto& ends = free_s.emplace_back();
    for (const auto& s : line.stages) ends.push_back(s.end_s);
  }
  const auto groups = gradient_groups(p);
  for (std::size_t g = groups.size(); g-- > 0;) {
    double start_s = 0;
    for (std::size_t l = 0; l < free_s.size(); ++l) start_s = std::max(start_s, at(free_s[l], groups[g].stages[l]));
    for (std::size_t l = 0; l < free_s.size(); ++l) at(free_s[l], groups[g].stages[l]) = start_s + p.gradient_sync[g].seconds;
  }
  for (std::size_t l = 0; l < free_s.size(); ++l)
    for (const auto& sync : p.pipelines[l].copy_sync) {
      const auto& line = p.pipelines[l];
      auto &owner_s = at(free_s[l], stage_with(line, sync.owner)), &copy_s = at(free_s[l], stage_with(line, sync.layer));
      owner_s = copy_s = std::max(owner_s, copy_s) + sync.seconds;
    }
  double last_s = 0;
  for (std::size_t l = 0; l < free_s.size(); ++l)
    for (std::size_t i = 0; i < free_s[l].size(); ++i)
      last_s = std::max(last_s, free_s[l][i] + p.pipelines[l].stages[i].update_s);
  return last_s;
}

/// Of each stage of each pipeline, what finish_iteration puts behind its end at the least, whatever the order.
[[nodiscard]] inline std::vector<std::vector<double>> finish_of_stages(const plan& p) {
  const auto groups = gradient_groups(p);
  std::vector<std::vector<double>> finish_s;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    auto& behind_s = finish_s.emplace_back();
    for (const auto& s : line.stages) behind_s.push_back(s.update_s);
    for (std::size_t g = 0; g < groups.size(); ++g) at(behind_s, groups[g].stages[l]) += p.gradient_sync[g].seconds;
    for (const auto& sync : line.copy_sync)
      for (const auto stage : std::set{stage_with(line, sync.owner), stage_with(line, sync.layer)})
        at(behind_s, stage) += sync.seconds;
  }
  return finish_s;
}

/// Money per second for what a plan uses: devices, or whole nodes where these have a price; none if some of it has none.
[[nodiscard]] inline std::optional<double> price_of_devices(const cluster& hardware, const plan& p) {
  std::vector<int> devices(hardware.subclusters.size());
  std::vector<std::set<int>> nodes(hardware.subclusters.size());
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) {
        const int per_node = subcluster_of(hardware, g.mesh).devices_per_node, count = g.mesh.device_count();
        at(devices, g.mesh.subcluster) += count;
        for (int n = g.first_device / per_node; n <= (g.first_device + count - 1) / per_node; ++n)
          at(nodes, g.mesh.subcluster).insert(n);
      }
  double per_hour = 0;
  for (std::size_t k = 0; k < devices.size(); ++k) {
    if (devices[k] == 0) continue;
    const auto price = hardware.subclusters[k].price_per_hour(devices[k], static_cast<int>(nodes[k].size()));
    if (!price) return std::nullopt;
    per_hour += *price;
  }
  return per_hour / 3600;
}

/// 1 - sum (t_max - t_d) peak_d / (t_max sum peak_d) over the devices in use (HARP Eq. 20), t_d: what a device computes in an
/// iteration; and the sum of the peaks.
struct device_balance {
  double balance = 0, peak_flops = 0;
};
[[nodiscard]] inline device_balance balance_of(const cluster& hardware, const plan& p, precision arithmetic) {
  double slowest = 0, busy = 0;
  device_balance result;
  const auto time = [](const pipeline_plan& line, const stage_plan& s) { return line.microbatches * s.cost.total_s(); };
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages) slowest = std::max(slowest, time(line, s));
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) {
        const double peak = g.mesh.device_count() * subcluster_of(hardware, g.mesh).device.flops(arithmetic);
        busy += time(line, s) * peak;
        result.peak_flops += peak;
      }
  if (slowest * result.peak_flops > 0) result.balance = busy / (slowest * result.peak_flops);
  return result;
}

/// The subcluster whose devices' memory a stage tells: that of all, unless the stage is mixed.
[[nodiscard]] inline const subcluster& fullest_of(const cluster& hardware, const stage_plan& s) {
  for (const auto& g : s.devices)
    if (const auto& at = subcluster_of(hardware, g.mesh); at.device.memory_bytes == s.memory_capacity_bytes) return at;
  return subcluster_of(hardware, s.devices.front().mesh);
}

[[nodiscard]] inline std::string shortage_of(const evaluation& e, const cluster& hardware) {
  double worst = 1;
  std::string text;
  for (std::size_t l = 0; l < e.pipelines.size(); ++l)
    for (std::size_t i = 0; i < e.pipelines[l].stages.size(); ++i) {
      const auto& planned = e.plan.pipelines[l].stages[i];
      const auto& s = e.pipelines[l].stages[i];
      const double share = static_cast<double>(planned.memory_bytes) / static_cast<double>(planned.memory_capacity_bytes);
      if (share <= worst) continue;
      worst = share;
      char in_flight[32];
      std::snprintf(in_flight, sizeof in_flight, "%.4g", s.in_flight);
      text = stage_name(e.plan, l, i) + " needs " + in_gib(static_cast<double>(planned.memory_bytes)) + " of the " +
             in_gib(static_cast<double>(planned.memory_capacity_bytes)) + " of " + fullest_of(hardware, planned).device.name +
             ":";
      const auto part = [&](bytes_t bytes, const char* name) {
        if (bytes > 0) text += std::string(" ") + name + " " + in_gib(static_cast<double>(bytes)) + ",";
      };
      const auto& m = s.memory;
      part(m.weights, m.gradients + m.optimizer > 0 ? "weights" : "state");
      part(m.gradients, "gradients");
      part(m.optimizer, "optimizer");
      part(m.activations, "activations");
      part(m.buffers, "transfer buffers");
      part(m.temporary, "temporary");
      part(m.runtime, "runtime");
      part(m.margin, "margin");
      text.back() = ' ';
      text += std::string("with ") + in_flight + " microbatches in flight";
    }
  return text;
}

/// Gives a pipeline whose order is to be searched that of an earlier one of the same costs and room: it would be the same.
inline void share_order(plan& p, std::size_t l) {
  auto& line = p.pipelines[l];
  if (line.schedule.actions || id_of(line.schedule) != schedule_id::searched) return;
  for (std::size_t k = 0; k < l && !line.schedule.actions; ++k) {
    const auto& other = p.pipelines[k];
    bool alike = other.schedule.name == line.schedule.name && other.microbatches == line.microbatches &&
                 other.stages.size() == line.stages.size() && other.boundaries == line.boundaries;
    for (std::size_t i = 0; alike && i < line.stages.size(); ++i) {
      const auto &s = line.stages[i], &t = other.stages[i];
      alike = s.cost == t.cost && s.overheads == t.overheads && s.memory_capacity_bytes == t.memory_capacity_bytes;
    }
    if (alike) line.schedule.actions = other.schedule.actions;
  }
}

/// evaluate, once the costs are filled in.
[[nodiscard]] inline outcome<evaluation> evaluate_priced(const cluster& hardware, plan p, const evaluate_options& options) {
  evaluation result;
  auto& predicted = p.predicted = {};
  const auto finish_s = finish_of_stages(p);
  double rate = 0;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    auto& line = p.pipelines[l];
    for (auto& s : line.stages) s.memory_capacity_bytes = subcluster_of(hardware, s.devices.front().mesh).device.memory_bytes;
    share_order(p, l);
    auto played = play(line, options);
    if (!played) return played.why_not();
    const auto& behind_s = finish_s[l];
    const double least_s = played->ends_first ? behind_s.front() : *std::min_element(behind_s.begin(), behind_s.end());
    predicted.lower_bound_s = std::max(predicted.lower_bound_s, played->lower_bound_s + least_s);
    if (played->period_s > 0) rate += 1 / played->period_s;
    predicted.period_s = played->period_s;
    result.pipelines.push_back(std::move(played->parts));
  }
  if (p.pipelines.size() > 1 && rate > 0) predicted.period_s = 1 / rate;
  predicted.iteration_s = finish_iteration(p, result.pipelines);
  predicted.lower_bound_s = std::min(predicted.lower_bound_s, predicted.iteration_s);  // rounding
  const auto [balance, peak_flops] = balance_of(hardware, p, options.arithmetic);
  predicted.load_balance = balance;
  if (predicted.iteration_s > 0) predicted.samples_per_s = static_cast<double>(sample_count(p)) / predicted.iteration_s;
  if (const auto price = price_of_devices(hardware, p))
    predicted.cost_per_sample = *price * predicted.iteration_s / static_cast<double>(sample_count(p));
  if (peak_flops > 0) predicted.mfu = options.flops_per_sample * predicted.samples_per_s / peak_flops;
  result.plan = std::move(p);
  result.shortage = shortage_of(result, hardware);
  return result;
}

/// The parts of each stage of a pipeline, with what they cost.
struct priced_parts {
  std::vector<stage_part> parts;
  parts_cost cost;
};

[[nodiscard]] inline bool is_of_one_device(const plan& p) {
  return p.pipelines.size() == 1 && p.pipelines.front().stages.size() == 1 &&
         device_count(p.pipelines.front().stages.front().devices) == 1;
}

/// Fills in what cost models say of a pipeline, and the parts of its stages. Returns a refusal where a boundary cannot be
/// crossed.
[[nodiscard]] inline std::optional<refusal> price(const cluster& hardware, const costs_by_size& costs_for, plan& p, std::size_t l,
                                                  std::vector<priced_parts>& stages) {
  auto& line = p.pipelines[l];
  line.boundaries.assign(line.stages.size() - 1, {});
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    const auto name = stage_name(p, l, i);
    auto& now = stages.emplace_back();
    try {
      now.parts = parts_of(s, line.microbatch_size, costs_for(line.microbatch_size).slices());
    } catch (const input_error& wrong) {
      throw input_error(name + ": " + wrong.what());
    }
    for (const auto& part : now.parts) {
      if (part.slices > 0) continue;
      const auto known = costs_for(part.samples).placements(part.where.mesh);
      if (std::none_of(known.begin(), known.end(), [&](const placement& q) { return q.degrees == part.where.degrees; }))
        throw input_error(name + ": there are no costs for these degrees on this shape, " + describe(hardware, part.where) +
                          (now.parts.size() > 1 ? ", with " + std::to_string(part.samples) + " samples of each microbatch" : ""));
    }
    now.cost = cost_of_parts(costs_for, s.layers, now.parts);
    share_state(s, now.parts, now.cost);
    for (std::size_t k = 0; k < now.parts.size(); ++k) {
      check_cost(now.cost.parts[k], hardware, s.layers, now.parts[k].where);
      validate(now.cost.overheads[k]);
    }
    charge_sums(now.cost, now.parts, line.microbatches, static_cast<double>(sample_count(p)) / line.microbatch_size,
                line.stages.size() > 1);
    s.cost = now.cost.slowest;
    s.update_s = update_of_parts(costs_for, s.layers, now.parts);
    for (auto& o : now.cost.overheads) {
      if (is_of_one_device(p)) o = alone(o);
      o.communicator_bytes = 0;  // that is settled
    }
    s.overheads = now.cost.overheads.front();
    if (now.parts.size() > 1 && !(std::max(s.cost.total_s(), s.update_s) < longest_time_s))
      return refusal{refusal::kind::infeasible, name + ": no link joins all of its devices"};
    if (i == 0) continue;
    const int boundary = s.layers.first - 1;
    const auto& from = stages[stages.size() - 2].parts;
    const auto one = [&](const stage_part& a, const stage_part& b, int samples) {
      const auto near = proximity_of(a.devices, b.devices, subcluster_of(hardware, b.where.mesh).devices_per_node);
      return costs_for(samples).transfer(boundary, a.where, b.where, near);
    };
    const auto c = transfer_of_parts(from, now.parts, one);
    check_transfer(c, hardware, boundary, from.front().where, now.parts.front().where);
    if (!(c.slower_way_s() < longest_time_s))
      return refusal{refusal::kind::infeasible, name + ": no link leads from " + describe(hardware, from.front().where) + " to " +
                                                    describe(hardware, now.parts.front().where)};
    // What is no less than the whole need not be said.
    const auto less = [](std::optional<double> part_s, double whole_s) { return part_s < whole_s ? part_s : std::nullopt; };
    line.boundaries[i - 1] = {.bytes = c.bytes,
                              .forward_s = c.forward_s,
                              .backward_s = c.backward_s,
                              .extra_bytes = c.extra_bytes,
                              .reshard = std::string(c.strategy),
                              .forward_occupied_s = less(c.forward_occupied_s, c.forward_s),
                              .backward_occupied_s = less(c.backward_occupied_s, c.backward_s)};
    for (const auto at : {i - 1, i}) {
      line.stages[at].overheads.buffer_bytes = checked_add(line.stages[at].overheads.buffer_bytes, c.extra_bytes);
      for (auto& more : stages[stages.size() - (i - at) - 1].cost.overheads)
        more.buffer_bytes = checked_add(more.buffer_bytes, c.extra_bytes);
    }
  }
  return std::nullopt;
}

/// Lets a stage of several parts say the memory of the fullest of its devices.
inline void tell_fullest(const cluster& hardware, evaluation& e, std::size_t l, std::size_t i, const priced_parts& priced) {
  auto& s = e.plan.pipelines[l].stages[i];
  auto& found = e.pipelines[l].stages[i];
  double worst = -1;
  for (std::size_t k = 0; k < priced.parts.size(); ++k) {
    const auto& cost = priced.cost.parts[k];
    const auto held = memory_of(cost, priced.cost.overheads[k], found.in_flight);
    const auto capacity = subcluster_of(hardware, priced.parts[k].where.mesh).device.memory_bytes;
    const double share = static_cast<double>(held.total()) / static_cast<double>(capacity);
    if (share <= worst) continue;
    worst = share;
    found.memory = held;
    s.memory_bytes = held.total();
    s.memory_capacity_bytes = capacity;
    s.overheads = priced.cost.overheads[k];
    s.cost.weight_bytes = cost.weight_bytes;
    s.cost.gradient_bytes = cost.gradient_bytes;
    s.cost.optimizer_bytes = cost.optimizer_bytes;
    s.cost.activation_bytes = cost.activation_bytes;
    s.cost.temporary_bytes = cost.temporary_bytes;
  }
}

/// Fills in the reductions between pipelines. Returns a refusal where the pipelines are not joined by links.
[[nodiscard]] inline std::optional<refusal> price_reductions(const any_cost_model& costs, plan& p) {
  p.gradient_sync.clear();
  std::vector<placement> holders;
  for (const auto& g : gradient_groups(p)) {
    holders.clear();
    gradient_sync_plan sync{.layers = g.layers};
    for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
      sync.pipelines.push_back(static_cast<int>(l));
      const auto& line = p.pipelines[l];
      const auto& held = at(line.stages, g.stages[l]);
      for (const auto& part : parts_of(held, line.microbatch_size, costs.slices())) holders.push_back(part.where);
    }
    const reduction_cost c = costs.gradient_sync(g.layers, holders);
    if (!(c.seconds < longest_time_s))
      return refusal{refusal::kind::infeasible,
                     "no link joins all pipelines: the gradients of " + describe(g.layers) + " cannot be added up"};
    sync.bytes = c.bytes;
    sync.seconds = c.seconds;
    p.gradient_sync.push_back(std::move(sync));
  }
  return std::nullopt;
}

/// Fills in the reductions of shared parameters between the stages of a pipeline; of parts, the slowest two. Returns a refusal
/// where no link joins two.
[[nodiscard]] inline std::optional<refusal> price_copies(const cluster& hardware, const costs_by_size& costs_for, plan& p,
                                                         std::size_t l, const std::vector<priced_parts>& stages) {
  auto& line = p.pipelines[l];
  line.copy_sync.clear();
  const auto& part = stages.front().parts.front();
  const any_cost_model costs = costs_for(part.samples);
  const auto copies = costs.copies(part.where);
  check_copies(copies, costs.layer_count());
  for (const auto& c : copies) {
    const auto i = stage_with(line, c.owner), j = stage_with(line, c.layer);
    if (i == j || c.reduction_bytes == 0) continue;
    copy_sync_plan sync{.owner = c.owner, .layer = c.layer, .bytes = c.reduction_bytes};
    for (const auto& a : stages[i].parts)
      for (const auto& b : stages[j].parts)
        sync.seconds = std::max(sync.seconds, shared_reduction_s(hardware, a.where, b.where, static_cast<double>(sync.bytes)));
    if (!(sync.seconds < longest_time_s))
      return refusal{refusal::kind::infeasible, "no link joins " + stage_name(p, l, i) + " and " + stage_name(p, l, j) +
                                                    ", which share parameters of layers " + std::to_string(c.owner) + " and " +
                                                    std::to_string(c.layer)};
    line.copy_sync.push_back(sync);
  }
  return std::nullopt;
}

/// Throws: input_error for a stage of several parts.
inline void require_one_size(const plan& p) {
  for (std::size_t l = 0; l < p.pipelines.size(); ++l)
    for (std::size_t i = 0; i < p.pipelines[l].stages.size(); ++i) {
      const auto& s = p.pipelines[l].stages[i];
      if ((is_mixed(s.devices) && s.degrees.data > 1) || detail::are_uneven(s.shares.data))
        throw input_error(stage_name(p, l, i) +
                          " shares its samples unevenly or among unlike devices: its price takes costs for "
                          "other microbatch sizes");
    }
}

}  // namespace detail

}  // namespace hetsched
