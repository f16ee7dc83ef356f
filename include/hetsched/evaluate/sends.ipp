// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

namespace detail {

inline void require_way_to_send(send_mode sends) {
  if (static_cast<std::size_t>(sends) >= send_modes.size()) throw input_error("there is no such way to send");
}

}  // namespace detail

HETSCHED_INLINE double iteration_under(const evaluation& judged, send_mode sends) {
  detail::require_evaluated(judged.plan);
  detail::require_way_to_send(sends);
  if (sends == send_mode::asynchronous) return judged.plan.predicted.iteration_s;
  auto played = judged.pipelines;
  detail::expect_size(played.size(), judged.plan.pipelines.size(), "pipelines that were played", "one for each of the plan's");
  for (std::size_t l = 0; l < judged.plan.pipelines.size(); ++l) {
    const auto& line = judged.plan.pipelines[l];
    detail::expect_size(played[l].stages.size(), line.stages.size(), "stages that were played", "one for each of the plan's");
    std::vector<double> room;
    for (const auto& s : line.stages) room.push_back(activation_room(s));
    const auto found = order_of(line, room);
    if (!found) throw input_error(found.why_not().reason);
    auto order = add_transfers(found->order);
    if (sends == send_mode::grouped) order = group_transfers(std::move(order));
    const auto ends = simulate(to_pipeline(line), order, {.semantics = send_semantics::rendezvous, .timeline = false}).rank_end_s;
    for (std::size_t i = 0; i < ends.size(); ++i) played[l].stages[i].end_s = ends[i];
  }
  return detail::finish_iteration(judged.plan, played);
}

HETSCHED_INLINE send_mode sends_under(const plan& p, send_mode trainer) {
  detail::require_way_to_send(trainer);
  bool sent = false;
  for (const auto& line : p.pipelines) {
    sent = sent || line.stages.size() > 1;
    const auto& own = line.schedule.actions;
    const bool listed =
        own && std::any_of(own->lanes.begin(), own->lanes.end(), [](const lane& l) {
          return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) { return is_transfer(a.kind); });
        });
    const auto* known = detail::find_schedule(line.schedule.name);
    const bool cut = own ? own->stages > own->ranks : known && known->cuts_stages;
    if (listed || cut || line.schedule.name == "virtual_1f1b") return send_mode::asynchronous;
  }
  return sent ? trainer : send_mode::asynchronous;
}

}  // namespace hetsched
