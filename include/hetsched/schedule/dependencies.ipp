// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/shape.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string misfit_text(const schedule& order, const lane& l, const action& a) {
  const auto rank = rank_text(l.rank);
  if (static_cast<int>(a.kind) >= action_kinds) return rank + " lists an action of no kind";
  const auto says = [&](int count, const char* of) {
    return rank + " " + to_text(a) + " is not of one of " + std::to_string(count) + " " + of;
  };
  if (a.stage < 0 || a.stage >= order.stages) return says(order.stages, "stages");
  if (a.direction < 0 || a.direction >= order.directions) return says(order.directions, "directions");
  if (!takes_microbatch(a.kind)) return rank + " " + to_text(a) + " takes no microbatch";
  return says(order.microbatches, "microbatches");
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE action_needs dependencies(const schedule& order, const action_index& index) {
  detail::validate_shape(order);
  if (!index.is_of(order)) throw input_error("the index is one of another schedule");
  action_needs result;
  const auto count = as_size(index.size());
  result.first.reserve(count + 1);
  result.needs.reserve(2 * count);
  result.first.push_back(0);
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      detail::for_each_need(order, index, a, [&](int n) {
        if (n < 0) throw input_error("the schedule does not list what " + to_text(a) + " needs");
        result.needs.push_back(n);
      });
      result.first.push_back(static_cast<int>(result.needs.size()));
    }
  return result;
}

HETSCHED_INLINE action_index::action_index(const schedule& order, detail::known_to_fit) : order_(&order) {
  lane_first.push_back(0);
  slots_per_kind_ = as_size(order.directions) * as_size(order.stages) * as_size(order.microbatches);
  for (auto& t : table_of_) t = -1;
  int tables = 0;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (auto& t = at(table_of_, a.kind); t < 0) t = tables++;
  positions_.assign(as_size(tables) * slots_per_kind_, -1);
  int number = 0;
  for (const auto& l : order.lanes) {
    for (const auto& a : l.actions) {
      int& position = positions_[slot(a)];
      if (position < 0)
        position = number;
      else
        repeats_ = true;
      ++number;
    }
    lane_first.push_back(number);
  }
}

HETSCHED_INLINE detail::known_to_fit action_index::fitting(const schedule& order) {
  std::size_t actions = 0;
  for (const int count : {order.directions, order.stages, order.microbatches})
    if (count < 0) throw input_error("a schedule of " + std::to_string(count) + " directions, stages or microbatches");
  for (const auto& l : order.lanes) {
    actions += l.actions.size();
    for (const auto& a : l.actions)
      if (!detail::fits(order, a)) throw input_error(detail::misfit_text(order, l, a));
  }
  if (detail::is_sparse(order, actions)) throw input_error(detail::sparse_text(order, actions));
  return {};
}

}  // namespace hetsched
