// SPDX-License-Identifier: Apache-2.0
// A plan's stages priced anew: when the iteration ends, where its time goes, and what its devices hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/training_memory.hpp>
#include <hetsched/io.hpp>
#include <hetsched/plan/predict.hpp>
#include <hetsched/plan/with_schedule.hpp>

#include "../costs.hpp"

namespace predict {

using namespace hetsched;

/// Where the time of an iteration goes, seen from its busiest stage; the parts add up to it.
struct breakdown {
  int stage = 0;
  double compute_s = 0;
  double collective_s = 0;  ///< of tensor and context parallelism and of ZeRO, in forward and backward
  double transfer_s = 0;    ///< the iteration less one with free transfers between stages
  double bubble_s = 0;
  double gradient_reduction_s = 0;
  double optimizer_s = 0;
};

/// What each device of a stage holds, by what holds it.
struct memory_parts {
  std::vector<std::pair<std::string, bytes_t>> parts;
  bytes_t total = 0;
  bytes_t capacity = 0;

  void add(const std::string& name, bytes_t bytes) {
    parts.emplace_back(name, bytes);
    total = checked_add(total, bytes);
  }
};

struct iteration {
  hetsched::plan plan;  ///< of one pipeline, priced anew; its memory is that of `memory`
  breakdown parts;
  std::vector<double> in_flight;  ///< per stage: most microbatches held at once
  std::vector<memory_parts> memory;
};

inline std::string stage_pointer(std::size_t i) { return "/pipelines/0/stages/" + std::to_string(i); }

/// The same hardware, but links take no time.
inline cluster with_free_links(cluster c) {
  const hetsched::link free{.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()};
  for (auto& s : c.subclusters) s.intra_node = s.inter_node = free;
  for (auto& l : c.links) l.link = free;
  return c;
}

/// `limits`: which degrees there are costs for.
inline void price(pipeline_plan& line, const command::any_costs& costs, const std::string& path, const std::string& limits) {
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    const auto known = costs.placements(s.where.mesh);
    if (std::find(known.begin(), known.end(), s.where) == known.end())
      throw file_error(path, stage_pointer(i) + "/degrees", "there are no costs for these degrees on this shape: " + limits);
    const stage_cost cost = costs.stage(s.layers, s.where);
    s.forward_s = cost.forward_s;
    s.backward_s = cost.backward_s;
    s.weight_backward_s = cost.weight_backward_s;
    s.weight_bytes = cost.weight_bytes;
    s.activation_bytes = cost.activation_bytes;
    s.update_s = costs.update(s.layers, s.where);
    s.transfer_s = 0;
    if (i + 1 == line.stages.size()) continue;
    s.transfer_s = costs.transfer(s.layers.last - 1, s.where, line.stages[i + 1].where);
    if (!std::isfinite(s.transfer_s))
      throw file_error(path, stage_pointer(i + 1) + "/subcluster", "no link leads here from the subcluster of the stage before");
  }
}

inline bool has_warmups(const std::string& schedule) {
  const auto& all = detail::named_schedules;
  return std::any_of(std::begin(all), std::end(all), [&](const auto& s) { return s.name == schedule && s.has_warmups; });
}

/// The plan's own schedule, with its warm-ups where it has any; auto is found anew.
inline outcome<schedule> schedule_of(const plan& p, const std::string& path) {
  const auto& line = p.pipelines.front();
  const auto bare = to_pipeline(line);
  if (p.schedule == "auto") {
    auto found = auto_with_little_memory(bare, line.microbatches, {.memory_capacity = activation_capacities(line)});
    if (!found) return found.why_not();
    return std::move(found->order);
  }
  try {
    return build_schedule(p.schedule, bare, line.microbatches,
                          {.warmups = has_warmups(p.schedule) ? warmups(line) : std::vector<int>{}});
  } catch (const input_error& wrong) {
    throw file_error(path, "/schedule", wrong.what());
  }
}

/// By the formulas. A rank of a bidirectional schedule also holds another stage's state.
inline memory_parts computed_memory(const pipeline_plan& line, const schedule& order, std::size_t rank, double in_flight,
                                    const layer_chain& chain, const stage_memory_options& how) {
  const auto use_of = [&](const stage_plan& s, int held) {
    auto options = how;
    options.samples = line.microbatch_size / s.where.degrees.data;
    options.in_flight = held;
    return stage_memory(chain, s.layers, s.where.degrees, options);
  };
  auto use = use_of(line.stages[rank], static_cast<int>(std::ceil(in_flight - 1e-6)));
  for (int c = 1; c < order.replicas; ++c)
    for (std::size_t i = 0; i < line.stages.size(); ++i) {
      if (order.rank(c, static_cast<int>(i)) != static_cast<int>(rank)) continue;
      const auto other = use_of(line.stages[i], 0);
      use.weights = checked_add(use.weights, other.weights);
      use.gradients = checked_add(use.gradients, other.gradients);
      use.optimizer = checked_add(use.optimizer, other.optimizer);
      use.margin = checked_add(use.margin, other.margin);
    }
  memory_parts result;
  result.add("weights", use.weights);
  result.add("gradients", use.gradients);
  result.add("optimizer", use.optimizer);
  result.add("activations", use.activations);
  result.add("temporary", use.temporary);
  result.add("runtime", use.runtime);
  result.add("margin", use.margin);
  return result;
}

/// By a profile, which does not tell more parts apart.
inline memory_parts measured_memory(const pipeline_plan& line, const schedule& order, std::size_t rank, double in_flight) {
  bytes_t state = line.stages[rank].weight_bytes;
  for (int c = 1; c < order.replicas; ++c)
    for (std::size_t i = 0; i < line.stages.size(); ++i)
      if (order.rank(c, static_cast<int>(i)) == static_cast<int>(rank)) state = checked_add(state, line.stages[i].weight_bytes);
  memory_parts result;
  result.add("state", state);
  // Shares of an activation add up to a little more or less than the whole.
  const double held = in_flight * static_cast<double>(line.stages[rank].activation_bytes);
  result.add("activations", static_cast<bytes_t>(std::ceil(held - 0.01)));
  return result;
}

/// Prices the stages of a plan of one pipeline and plays its own schedule. Throws file_error where the costs do not fit the plan
/// at `path`; refused if schedule auto finds no room. Precondition: its stages count the subclusters of `hardware`.
inline outcome<iteration> predict_iteration(const command::cost_choice& given, const cluster& hardware, const model_file& model,
                                            plan p, const std::string& path) {
  auto& line = p.pipelines.front();
  auto alone = line;
  int context = 1;
  for (const auto& s : line.stages) context = std::max(context, s.where.degrees.context);
  const auto costs_on = [&](const cluster& c) { return given.costs(c, model, line.microbatch_size, context); };
  const std::string limits = given.profile.empty()
                                 ? "data must divide the " + std::to_string(line.microbatch_size) +
                                       " samples of a microbatch, tensor the devices of a node and the model's heads"
                                 : given.profile + " has none";
  price(line, costs_on(hardware), path, limits);
  price(alone, costs_on(with_free_links(hardware)), path, limits);

  const auto order = schedule_of(p, path);
  if (!order) return order.why_not();
  auto bare = to_pipeline(line);
  bare.activation_bytes.clear();  // then memory is counted in microbatches
  const auto work = make_workload(bare, *order);
  const auto played = simulate(work, *order, {.timeline = false});
  auto unhindered = bare;
  std::fill(unhindered.transfer_s.begin(), unhindered.transfer_s.end(), 0.0);
  const auto free = simulate(unhindered, *order, {.timeline = false});

  iteration result;
  auto& predicted = p.predicted = {};
  auto& parts = result.parts;
  const auto counts = warmup_counts(*order);
  double free_s = 0, most_s = -1;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    s.warmup = counts[i];
    predicted.iteration_s = std::max(predicted.iteration_s, played.rank_end_s[i] + s.update_s);
    free_s = std::max(free_s, free.rank_end_s[i] + s.update_s);
    const double work_s = line.microbatches * (s.forward_s + s.backward_s) + s.update_s;
    if (work_s > most_s) {
      most_s = work_s;
      parts.stage = static_cast<int>(i);
    }
    result.in_flight.push_back(played.peak_memory_bytes[i]);
    const stage_memory_options how{.recompute = command::recomputations.at(given.recompute), .state = given.state(model)};
    auto memory = given.profile.empty() ? computed_memory(line, *order, i, result.in_flight[i], model.chain, how)
                                        : measured_memory(line, *order, i, result.in_flight[i]);
    memory.capacity = subcluster_of(hardware, s.where.mesh).device.memory_bytes;
    s.memory_bytes = memory.total;
    s.memory_capacity_bytes = memory.capacity;
    result.memory.push_back(std::move(memory));
  }
  predicted.lower_bound_s = makespan_lower_bound(work, *order);
  predicted.period_s = has_warmups(p.schedule) ? period(bare, counts) : played.period_s;
  predicted.load_balance = load_balance(hardware, line, model.precision);
  if (predicted.iteration_s > 0)
    predicted.samples_per_s = line.microbatches * static_cast<double>(line.microbatch_size) / predicted.iteration_s;
  predicted.mfu = mfu(hardware, p, training_flops(model.chain), model.precision);

  const auto &busiest = line.stages[static_cast<std::size_t>(parts.stage)],
             &by_itself = alone.stages[static_cast<std::size_t>(parts.stage)];
  parts.compute_s = line.microbatches * (by_itself.forward_s + by_itself.backward_s);
  parts.collective_s = line.microbatches * (busiest.forward_s + busiest.backward_s) - parts.compute_s;
  parts.optimizer_s = by_itself.update_s;
  parts.gradient_reduction_s = busiest.update_s - by_itself.update_s;
  parts.transfer_s = std::max(0.0, predicted.iteration_s - free_s);
  parts.bubble_s = std::max(0.0, predicted.iteration_s - parts.transfer_s - most_s);
  result.plan = std::move(p);
  return result;
}

}  // namespace predict
