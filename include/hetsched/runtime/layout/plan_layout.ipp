// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<stage_layout> stages_of_plan(const pipeline_plan& p, const schedule& order) {
  if (order.stages < 1 || order.rank_of.size() < as_size(order.stages)) throw input_error("a schedule needs at least one stage");
  for (const int rank : order.rank_of)
    if (rank < 0 || rank >= order.ranks) throw input_error("a stage of the schedule lies on no rank");
  bool as_planned = as_size(order.stages) == p.stages.size();
  for (int s = 0; as_planned && s < order.stages; ++s) as_planned = order.rank(0, s) == s;
  std::vector<stage_layout> found;
  if (as_planned) {
    for (const auto& s : p.stages) found.push_back({.layers = s.layers});
  } else {
    std::vector<int> held(p.stages.size(), 0);
    for (int s = 0; s < order.stages; ++s) ++at(held, order.rank(0, s));
    std::vector<double> weights;
    for (int s = 0; s < order.stages; ++s) {
      const auto r = as_size(order.rank(0, s));
      weights.push_back(static_cast<double>(p.stages[r].layers.size()) / held[r]);
    }
    found = cut_layers(p.stages.back().layers.last - p.stages.front().layers.first, weights);
  }
  for (int s = 0; s + 1 < order.stages; ++s) {
    const auto before = as_size(std::min(order.rank(0, s), order.rank(0, s + 1)));
    if (before < p.boundaries.size())
      at(found, s).reshard = find_reshard_strategy(p.boundaries[before].reshard).value_or(reshard_strategy::direct);
  }
  return found;
}

HETSCHED_INLINE std::vector<group_layout> groups_of_plan(const pipeline_plan& p, std::size_t pipeline) {
  const auto uneven = [](const std::vector<double>& shares) {
    return std::any_of(shares.begin(), shares.end(), [&](double s) { return s != shares.front(); });
  };
  std::vector<group_layout> found;
  for (std::size_t s = 0; s < p.stages.size(); ++s) {
    const auto& stage = p.stages[s];
    const auto& shares = stage.shares;
    auto& one = found.emplace_back(group_layout{.degrees = stage.degrees,
                                                .recompute = stage.recompute,
                                                .zero = stage.zero,
                                                .state_shares = shares.state,
                                                .tensor_shares = shares.tensor});
    if (uneven(shares.context))
      throw input_error("pipeline " + std::to_string(pipeline) + ": stage " + std::to_string(s) +
                        " has uneven shares of its context axis: layers cut it evenly, data and tensor can be run unevenly");
    if (!uneven(shares.data)) continue;
    if (shares.data.size() != as_size(stage.degrees.data))
      throw input_error("pipeline " + std::to_string(pipeline) + ": stage " + std::to_string(s) + " has " +
                        std::to_string(shares.data.size()) + " shares for " + std::to_string(stage.degrees.data) + " data ranks");
    one.sample_points = cut_points(p.microbatch_size, shares.data);
  }
  return found;
}

HETSCHED_INLINE schedule schedule_of_plan(const pipeline_plan& p, const layout_options& options) {
  auto line = p;
  line.boundaries.resize(line.stages.size() - 1);  // a plan by hand may have none: they count as free
  if (!options.schedule.empty() && options.schedule != p.schedule.name) line.schedule = {.name = std::string(options.schedule)};
  const auto& name = line.schedule.name;
  const bool told = line.schedule.actions || name == auto_schedule_name || (has_warmups(name) && name == p.schedule.name);
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
    t.pipelines.push_back({.order = std::move(order),
                           .stages = std::move(stages),
                           .first_rank = first_rank,
                           .microbatch_size = one.microbatch_size,
                           .groups = detail::groups_of_plan(one, i)});
    first_rank += t.pipelines.back().ranks();
  }
  validate(t);
  return t;
}

}  // namespace hetsched
