// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/cost/questions/stage_part.hpp>
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

struct evaluate_options {
  double flops_per_sample = 0;             ///< training_flops of the model, for the MFU; 0: not known
  precision arithmetic = precision::fp16;  ///< whose peaks count in MFU and load balance
  double epsilon = default_epsilon;        ///< of H-1F1B, where a plan names it without warm-ups
  /// While schedule auto is searched for: called with the best makespan so far and its bound, in seconds; false ends the search.
  function_ref<bool(double best_s, double bound_s)> progress = {};
};

/// What a stage of a plan holds and when it is done.
struct stage_evaluation {
  memory_use memory{};
  double in_flight = 0;  ///< most microbatches held at once
  double end_s = 0;      ///< of its last computation; reduction and update follow
};

/// The stages of a pipeline under its schedule.
struct pipeline_evaluation {
  std::vector<stage_evaluation> stages;
};

/// What a plan is worth.
struct evaluation {
  hetsched::plan plan;  ///< complete: costs, transfers, memory, warm-ups, reductions, prediction
  std::vector<pipeline_evaluation> pipelines;
  std::string shortage;  ///< the stage that lacks most memory, as a sentence; empty: all fit
};

namespace detail {

/// The state of all stages that a rank holds: those of bidirectional schedules hold one of each direction.
template <class Line>
[[nodiscard]] stage_cost held_by(const Line& line, const schedule& order, std::size_t rank) {
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
  double lower_bound_s = 0;
  double period_s = 0;
};

/// Fills in a stage's warm-up and memory; `held`: what its rank holds.
inline void settle(stage_plan& s, int warmup, const stage_cost& held, stage_evaluation& found) {
  s.warmup = warmup;
  found.memory = memory_of(held, s.overheads, found.in_flight);
  s.memory_bytes = found.memory.total();
}

/// Plays a priced pipeline of the 1F1B family.
template <class Line>
[[nodiscard]] played_pipeline play_family(Line& line, const pipeline& bare, const evaluate_options& options) {
  played_pipeline result;
  auto counts = family_warmups(line, bare, options.epsilon);
  for (int& n : counts) n = std::min(n, line.microbatches);
  const auto ends = stage_ends(bare, counts, line.microbatches);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    result.parts.stages.push_back({.in_flight = static_cast<double>(counts[i]), .end_s = ends[i]});
    settle(line.stages[i], counts[i], line.stages[i].cost, result.parts.stages[i]);
  }
  result.period_s = period(bare, counts);
  result.lower_bound_s = std::min(makespan_lower_bound(bare, line.microbatches), *std::max_element(ends.begin(), ends.end()));
  return result;
}

/// Plays a priced pipeline.
template <class Line>
[[nodiscard]] outcome<played_pipeline> play(Line& line, const evaluate_options& options) {
  auto bare = to_pipeline(line);
  bare.activation_bytes.clear();  // then memory is counted in microbatches
  if (!line.schedule.actions && has_warmups(line.schedule.name)) return play_family(line, bare, options);
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
  result.period_s = line.schedule.name == "gpipe" ? gpipe_period(bare) : played.period_s;
  // Equal bounds differ by rounding.
  result.lower_bound_s = std::min(std::max(found->lower_bound_s, makespan_lower_bound(bare, work, order)), played.makespan_s);
  if (line.schedule.name == "auto" && !line.schedule.actions) line.schedule.actions = std::move(order);
  return result;
}

/// Adds up gradients between pipelines, last layers first, and then updates: when the last stage is done. A group's reduction
/// starts when all its stages are free.
template <class Plan>
[[nodiscard]] double finish_iteration(const Plan& p, const std::vector<pipeline_evaluation>& played) {
  std::vector<std::vector<double>> free_s;
  for (const auto& line : played) {
    auto& ends = free_s.emplace_back();
    for (const auto& s : line.stages) ends.push_back(s.end_s);
  }
  const auto groups = gradient_groups(p);
  for (std::size_t g = groups.size(); g-- > 0;) {
    double start_s = 0;
    for (std::size_t l = 0; l < free_s.size(); ++l)
      start_s = std::max(start_s, free_s[l][static_cast<std::size_t>(groups[g].stages[l])]);
    for (std::size_t l = 0; l < free_s.size(); ++l)
      free_s[l][static_cast<std::size_t>(groups[g].stages[l])] = start_s + p.gradient_sync[g].seconds;
  }
  double last_s = 0;
  for (std::size_t l = 0; l < free_s.size(); ++l)
    for (std::size_t i = 0; i < free_s[l].size(); ++i)
      last_s = std::max(last_s, free_s[l][i] + p.pipelines[l].stages[i].update_s);
  return last_s;
}

/// Money per second for the devices in use; none if one of them has no price.
template <class Plan>
[[nodiscard]] std::optional<double> price_of_devices(const cluster& hardware, const Plan& p) {
  double per_hour = 0;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) {
        const auto& price = subcluster_of(hardware, g.mesh).device.price_per_hour;
        if (!price) return std::nullopt;
        per_hour += g.mesh.device_count() * *price;
      }
  return per_hour / 3600;
}

/// 1 - sum (t_max - t_d) peak_d / (t_max sum peak_d) over the devices in use (HARP Eq. 20), t_d: what a device computes in an
/// iteration; and the sum of the peaks.
struct device_balance {
  double balance = 0, peak_flops = 0;
};
template <class Plan>
[[nodiscard]] device_balance balance_of(const cluster& hardware, const Plan& p, precision arithmetic) {
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

template <class Evaluation>
[[nodiscard]] std::string shortage_of(const Evaluation& e, const cluster& hardware) {
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

/// evaluate, once the costs are filled in.
template <class Plan>
[[nodiscard]] outcome<evaluation> evaluate_priced(const cluster& hardware, Plan p, const evaluate_options& options) {
  evaluation result;
  auto& predicted = p.predicted = {};
  double rate = 0;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    auto& line = p.pipelines[l];
    for (auto& s : line.stages) s.memory_capacity_bytes = subcluster_of(hardware, s.devices.front().mesh).device.memory_bytes;
    auto played = play(line, options);
    if (!played) return played.why_not();
    predicted.lower_bound_s = std::max(predicted.lower_bound_s, played->lower_bound_s);
    if (played->period_s > 0) rate += 1 / played->period_s;
    predicted.period_s = played->period_s;
    result.pipelines.push_back(std::move(played->parts));
  }
  if (p.pipelines.size() > 1 && rate > 0) predicted.period_s = 1 / rate;
  predicted.iteration_s = finish_iteration(p, result.pipelines);
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

/// Cost models by microbatch size, each asked for once.
template <class CostsFor>
class remembered_costs {
  using answer = std::invoke_result_t<CostsFor&, int>;
  using model = std::remove_cvref_t<answer>;
  static constexpr bool lasting = std::is_lvalue_reference_v<answer>;

 public:
  explicit remembered_costs(CostsFor& costs_for) : costs_for_(&costs_for) {}
  const model& operator()(int size) {
    auto known = by_size_.find(size);
    if constexpr (lasting) {
      if (known == by_size_.end()) known = by_size_.emplace(size, &(*costs_for_)(size)).first;
      return *known->second;
    } else {
      if (known == by_size_.end()) known = by_size_.emplace(size, (*costs_for_)(size)).first;
      return known->second;
    }
  }

 private:
  CostsFor* costs_for_;
  std::map<int, std::conditional_t<lasting, const model*, model>> by_size_;
};

/// The parts of each stage of a pipeline, with what they cost.
struct priced_parts {
  std::vector<stage_part> parts;
  parts_cost cost;
};

/// Fills in what cost models say of a pipeline, and the parts of its stages. Returns a refusal where a boundary cannot be
/// crossed.
template <class CostsFor>
[[nodiscard]] std::optional<refusal> price(const cluster& hardware, CostsFor& costs_for, plan& p, std::size_t l,
                                           std::vector<priced_parts>& stages) {
  auto& line = p.pipelines[l];
  line.boundaries.assign(line.stages.size() - 1, {});
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    const auto name = stage_name(p, l, i);
    auto& now = stages.emplace_back();
    try {
      now.parts = parts_of(s, line.microbatch_size, cost_of::slices(costs_for(line.microbatch_size)));
    } catch (const input_error& wrong) {
      throw input_error(name + ": " + wrong.what());
    }
    for (const auto& part : now.parts) {
      if (part.slices > 0) continue;
      const auto known = cost_of::placements(costs_for(part.samples), part.where.mesh);
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
    s.cost = now.cost.slowest;
    s.update_s = update_of_parts(costs_for, s.layers, now.parts);
    s.overheads = now.cost.overheads.front();
    if (now.parts.size() > 1 && !(std::max(s.cost.total_s(), s.update_s) < 1e300))
      return refusal{refusal::kind::infeasible, name + ": no link joins all of its devices"};
    if (i == 0) continue;
    const int boundary = s.layers.first - 1;
    const auto& from = stages[stages.size() - 2].parts;
    const auto c = transfer_of_parts(from, now.parts, [&](const stage_part& a, const stage_part& b, int samples) {
      const auto near = proximity_of(a.devices, b.devices, subcluster_of(hardware, b.where.mesh).devices_per_node);
      return transfer_cost(cost_of::transfer(costs_for(samples), boundary, a.where, b.where, near));
    });
    check_transfer(c, hardware, boundary, from.front().where, now.parts.front().where);
    if (!(c.slower_way_s() < 1e300))
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
template <class Evaluation>
void tell_fullest(const cluster& hardware, Evaluation& e, std::size_t l, std::size_t i, const priced_parts& priced) {
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
template <stage_cost_model Costs>
[[nodiscard]] std::optional<refusal> price_reductions(const Costs& costs, plan& p) {
  p.gradient_sync.clear();
  std::vector<placement> holders;
  for (const auto& g : gradient_groups(p)) {
    holders.clear();
    gradient_sync_plan sync{.layers = g.layers};
    for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
      sync.pipelines.push_back(static_cast<int>(l));
      const auto& line = p.pipelines[l];
      const auto& held = line.stages[static_cast<std::size_t>(g.stages[l])];
      for (const auto& part : parts_of(held, line.microbatch_size, cost_of::slices(costs))) holders.push_back(part.where);
    }
    const reduction_cost c = cost_of::gradient_sync(costs, g.layers, holders);
    if (!(c.seconds >= 0) || c.bytes < 0)
      throw input_error("the reduction of the gradients of " + describe(g.layers) + " is negative or not a number");
    if (!(c.seconds < 1e300))
      return refusal{refusal::kind::infeasible,
                     "no link joins all pipelines: the gradients of " + describe(g.layers) + " cannot be added up"};
    sync.bytes = c.bytes;
    sync.seconds = c.seconds;
    p.gradient_sync.push_back(std::move(sync));
  }
  return std::nullopt;
}

/// Throws: input_error for a stage of several parts.
template <class Plan>
void require_one_size(const Plan& p) {
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

/// A function that makes the cost model for a microbatch size.
template <class F>
concept costs_by_microbatch_size = requires(F& f) {
  { f(1) } -> stage_cost_model;
};

/// What a plan is worth, whoever made it: asks the costs of its stages, boundaries and reductions, plays every pipeline under its
/// schedule, adds the reduction of gradients between pipelines and the stages' updates, and bounds and memory. Every other figure
/// of a plan in the library is this one's. What the plan says already of costs, memory and prediction is overwritten; warm-ups
/// and actions count as they are. `models`: that of each microbatch size of the plan, and of the samples of each part of a stage.
/// Returns: the evaluation, also of a plan that does not fit in memory (`shortage` says so); a refusal where a link is missing,
/// or schedule auto finds no room.
/// Throws: input_error for a plan that does not fit cluster or costs, naming the stage, and where two stages share a device.
/// Complexity: O(stages * microbatches) for the 1F1B family, else that of simulate.
template <costs_by_microbatch_size CostsFor>
[[nodiscard]] outcome<evaluation> evaluate(const cluster& hardware, CostsFor&& models, plan p,
                                           const evaluate_options& options = {}) {
  if (is_inference(p)) throw input_error("a plan with the objective " + p.objective + " is for inference: it has no iteration");
  if (p.pipelines.empty()) throw input_error("a plan needs at least one pipeline");
  detail::remembered_costs<std::remove_reference_t<CostsFor>> costs_for(models);
  std::vector<std::vector<detail::priced_parts>> priced(p.pipelines.size());
  const int size = p.pipelines.front().microbatch_size;
  validate(hardware, p, cost_of::layer_count(costs_for(size)));
  for (std::size_t l = 0; l < p.pipelines.size(); ++l)
    if (auto why = detail::price(hardware, costs_for, p, l, priced[l])) return *std::move(why);
  if (auto why = detail::price_reductions(costs_for(size), p)) return *std::move(why);
  auto found = detail::evaluate_priced(hardware, std::move(p), options);
  if (!found) return found;
  bool several = false;
  for (std::size_t l = 0; l < priced.size(); ++l)
    for (std::size_t i = 0; i < priced[l].size(); ++i) {
      if (priced[l][i].parts.size() == 1) continue;
      detail::tell_fullest(hardware, *found, l, i, priced[l][i]);
      several = true;
    }
  if (several) found->shortage = detail::shortage_of(*found, hardware);
  return found;
}

/// The same for a plan of one microbatch size, that of the costs. Throws: input_error also for a stage of several parts (see
/// stage_part), which needs the costs of other sizes.
template <stage_cost_model Costs>
[[nodiscard]] outcome<evaluation> evaluate(const cluster& hardware, const Costs& costs, plan p,
                                           const evaluate_options& options = {}) {
  detail::require_one_size(p);
  return evaluate(
      hardware, [&](int) -> const Costs& { return costs; }, std::move(p), options);
}

}  // namespace hetsched
