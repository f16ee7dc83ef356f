// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<layer_range> stages_of_plan(const pipeline_plan& p, const schedule& order) {
  if (order.stages < 1 || order.rank_of.size() < static_cast<std::size_t>(order.stages))
    throw input_error("a schedule needs at least one stage");
  for (const int rank : order.rank_of)
    if (rank < 0 || rank >= order.ranks) throw input_error("a stage of the schedule lies on no rank");
  bool as_planned = static_cast<std::size_t>(order.stages) == p.stages.size();
  for (int s = 0; as_planned && s < order.stages; ++s) as_planned = order.rank(0, s) == s;
  std::vector<layer_range> ranges;
  if (as_planned) {
    for (const auto& s : p.stages) ranges.push_back(s.layers);
    return ranges;
  }
  std::vector<int> held(p.stages.size(), 0);
  for (int s = 0; s < order.stages; ++s) ++held[static_cast<std::size_t>(order.rank(0, s))];
  std::vector<double> weights;
  for (int s = 0; s < order.stages; ++s) {
    const auto r = static_cast<std::size_t>(order.rank(0, s));
    weights.push_back(static_cast<double>(p.stages[r].layers.size()) / held[r]);
  }
  return cut_layers(p.stages.back().layers.last - p.stages.front().layers.first, weights);
}

HETSCHED_INLINE std::vector<degrees> groups_of_plan(const pipeline_plan& p) {
  std::vector<degrees> groups;
  for (const auto& s : p.stages) groups.push_back(s.degrees);
  if (std::all_of(groups.begin(), groups.end(), [](const degrees& d) { return d == degrees{}; })) groups.clear();
  return groups;
}

HETSCHED_INLINE std::vector<std::vector<std::int64_t>> sample_points_of_plan(const pipeline_plan& p, std::size_t pipeline) {
  const auto uneven = [](const std::vector<double>& shares) {
    return std::any_of(shares.begin(), shares.end(), [&](double s) { return s != shares.front(); });
  };
  std::vector<std::vector<std::int64_t>> found(p.stages.size());
  bool any = false;
  for (std::size_t s = 0; s < p.stages.size(); ++s) {
    const auto& shares = p.stages[s].shares;
    if (uneven(shares.context))
      throw input_error("pipeline " + std::to_string(pipeline) + ": stage " + std::to_string(s) +
                        " has uneven shares of its context axis: layers cut it evenly, data and tensor can be run unevenly");
    if (!uneven(shares.data)) continue;
    if (shares.data.size() != static_cast<std::size_t>(p.stages[s].degrees.data))
      throw input_error("pipeline " + std::to_string(pipeline) + ": stage " + std::to_string(s) + " has " +
                        std::to_string(shares.data.size()) + " shares for " + std::to_string(p.stages[s].degrees.data) +
                        " data ranks");
    found[s] = cut_points(p.microbatch_size, shares.data);
    any = true;
  }
  if (!any) found.clear();
  return found;
}

HETSCHED_INLINE std::vector<reshard_strategy> strategies_of_plan(const pipeline_plan& p, const schedule& order) {
  std::vector<reshard_strategy> found;
  bool any = false;
  for (int s = 0; s + 1 < order.stages; ++s) {
    const auto before = static_cast<std::size_t>(std::min(order.rank(0, s), order.rank(0, s + 1)));
    const auto known = before < p.boundaries.size() ? find_reshard_strategy(p.boundaries[before].reshard) : std::nullopt;
    found.push_back(known.value_or(reshard_strategy::direct));
    any = any || found.back() != reshard_strategy::direct;
  }
  if (!any) found.clear();
  return found;
}

HETSCHED_INLINE schedule schedule_of_plan(const pipeline_plan& p, const layout_options& options) {
  auto line = p;
  line.boundaries.resize(line.stages.size() - 1);  // a plan by hand may have none: they count as free
  if (!options.schedule.empty() && options.schedule != p.schedule.name) line.schedule = {.name = std::string(options.schedule)};
  const auto& name = line.schedule.name;
  const bool told = line.schedule.actions || name == "auto" || (has_warmups(name) && name == p.schedule.name);
  if (!told)
    return build_schedule(name, to_pipeline(line), p.microbatches, {.chunks = options.chunks, .cross = subcluster_boundaries(p)});
  auto found = order_of(line, activation_rooms(p));
  if (!found) throw input_error("no schedule for the plan: " + found.why_not().reason);
  return std::move(found->order);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE training_layout make_training_layout(const plan& p, const layout_options& options) {
  if (p.pipelines.empty()) throw input_error("a plan without pipelines cannot be run");
  if (!options.orders.empty() && options.orders.size() != p.pipelines.size())
    throw input_error(std::to_string(options.orders.size()) + " schedules for " + std::to_string(p.pipelines.size()) +
                      " pipelines");
  training_layout t;
  int first_rank = 0;
  for (std::size_t i = 0; i < p.pipelines.size(); ++i) {
    const auto& one = p.pipelines[i];
    if (one.stages.empty()) throw input_error("a plan without stages cannot be run");
    auto order = options.orders.empty() ? detail::schedule_of_plan(one, options) : options.orders[i];
    const int ranks = static_cast<int>(one.stages.size());
    if (order.ranks != ranks || order.microbatches != one.microbatches)
      throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks and " + std::to_string(order.microbatches) +
                        " microbatches, but pipeline " + std::to_string(i) + " of the plan has " + std::to_string(ranks) +
                        " stages and " + std::to_string(one.microbatches));
    if (one.stages.front().layers.first != 0)
      throw input_error("pipeline " + std::to_string(i) + " of the plan begins with layer " +
                        std::to_string(one.stages.front().layers.first));
    t.layers = std::max(t.layers, one.stages.back().layers.last);
    auto stages = detail::stages_of_plan(one, order);
    auto reshard = detail::strategies_of_plan(one, order);
    std::vector<recomputation> recompute;
    std::vector<int> zero;
    std::vector<std::vector<double>> state_shares, tensor_shares;
    for (const auto& s : one.stages) {
      state_shares.push_back(s.shares.state);
      tensor_shares.push_back(s.shares.tensor);
      recompute.push_back(s.recompute);
      zero.push_back(s.zero);
    }
    if (std::count(recompute.begin(), recompute.end(), recomputation::none) == ranks) recompute.clear();
    if (std::count(zero.begin(), zero.end(), 0) == ranks) zero.clear();
    for (auto* all : {&state_shares, &tensor_shares})
      if (std::all_of(all->begin(), all->end(), [](const auto& shares) { return shares.empty(); })) all->clear();
    t.pipelines.push_back({.order = std::move(order),
                           .stages = std::move(stages),
                           .first_rank = first_rank,
                           .microbatch_size = one.microbatch_size,
                           .groups = detail::groups_of_plan(one),
                           .reshard = std::move(reshard),
                           .sample_points = detail::sample_points_of_plan(one, i),
                           .recompute = std::move(recompute),
                           .zero = std::move(zero),
                           .state_shares = std::move(state_shares),
                           .tensor_shares = std::move(tensor_shares)});
    first_rank += t.pipelines.back().ranks();
  }
  validate(t);
  return t;
}

}  // namespace hetsched
