// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/check/detail/deadlock.hpp>
#include <hetsched/schedule/check/issue_order.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

HETSCHED_INLINE schedule with_issue_lanes(const schedule& order, const issue_order& issued) {
  schedule result = order;
  for (auto& l : result.lanes) {
    bool left_out = false;
    std::vector<action> kept;
    for (action a : l.actions) {
      if (is_issued(order, a)) {
        left_out = left_out || !a.joined;
        continue;
      }
      const bool is_first = std::exchange(left_out, false);
      a.joined = a.joined && !is_first;
      kept.push_back(a);
    }
    l.actions = std::move(kept);
  }
  for (int r = 0; r < order.ranks; ++r)
    result.lanes.push_back({.rank = r, .stream = stream::collective, .peer = -1, .actions = at(issued.of_rank, r)});
  return result;
}

}  // namespace hetsched::detail

namespace hetsched::detail::unchecked {

HETSCHED_INLINE std::vector<std::string> check_issue_order(const schedule& order, const issue_order& issued) {
  std::vector<std::string> wrong;
  if (issued.of_rank.size() != as_size(order.ranks))
    return {"an issue order of " + std::to_string(issued.of_rank.size()) + " ranks for a schedule of " +
            std::to_string(order.ranks)};
  const action_index index(order);
  std::vector<int> listed(as_size(index.size()), 0);
  for (std::size_t r = 0; r < issued.of_rank.size(); ++r)
    for (const auto& a : issued.of_rank[r]) {
      const auto name = "rank " + std::to_string(r) + " issues " + to_text(a);
      const bool fits = detail::fits(order, a) && detail::is_issued(order, a);
      const int n = fits ? index.find(a.kind, a.direction, a.stage, std::max(a.microbatch, 0)) : -1;
      if (n < 0 || order.rank(a.direction, a.stage) != static_cast<int>(r))
        wrong.push_back(name + ", which the schedule does not list there");
      else if (at(listed, n)++ > 0)
        wrong.push_back(name + " twice");
    }
  int n = 0;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (detail::is_issued(order, a) && at(listed, n++) == 0)
        wrong.push_back("rank " + std::to_string(l.rank) + " does not issue " + to_text(a));
      else if (!detail::is_issued(order, a))
        ++n;
  if (!wrong.empty()) return wrong;
  const auto run_as = detail::with_issue_lanes(order, issued);
  const action_index run_index(run_as);
  const detail::lane_run run(run_as, run_index, send_semantics::rendezvous, true);
  return run.finished() ? detail::crossed_channels(run_as, run_index) : run.cycles();
}

}  // namespace hetsched::detail::unchecked

namespace hetsched {

HETSCHED_INLINE std::vector<std::string> check_issue_order(const schedule& order, const issue_order& issued) {
  static_cast<void>(detail::sound_index(order));
  return detail::unchecked::check_issue_order(order, issued);
}

HETSCHED_INLINE found_issue_order find_issue_order(const schedule& order) {
  const auto index = detail::sound_index(order);
  std::vector<action> met;
  const detail::lane_run run(order, index, send_semantics::rendezvous, true, &met);
  found_issue_order found{.order = {}, .arrivals = {}, .cycles = {}};
  if (!run.finished()) {
    found.cycles = run.cycles();
    return found;
  }
  found.order.of_rank.resize(as_size(order.ranks));
  found.arrivals.resize(found.order.of_rank.size());
  const auto rank_of = [&](const action& a) { return as_size(order.rank(a.direction, a.stage)); };
  const auto issue = [&](action a) {
    a.joined = false;
    found.order.of_rank[rank_of(a)].push_back(a);
  };
  for (const auto& a : met) {
    if (detail::is_h2d(a.kind)) found.arrivals[rank_of(a)].push_back({a, found.order.of_rank[rank_of(a)].size()});
    if (!detail::is_issued(order, a)) continue;
    issue(a);
    if (detail::is_send(a.kind) || detail::is_receive(a.kind)) {
      issue(detail::other_end(a));
    } else {
      action other = a;
      other.direction = static_cast<std::int16_t>(1 - a.direction);
      issue(other);
    }
  }
  return found;
}

HETSCHED_INLINE issue_order group_exchanges(const schedule& order, issue_order issued) {
  if (const auto wrong = check_issue_order(order, issued); !wrong.empty()) throw input_error(wrong.front());
  const auto of_rank = [&](int rank) -> std::vector<action>& { return at(issued.of_rank, rank); };
  const auto is_single = [](const std::vector<action>& list, std::size_t k) {
    return !list[k].joined && (k + 1 == list.size() || !list[k + 1].joined);
  };
  for (int r = 0; r < order.ranks; ++r)
    for (std::size_t k = 0; k + 1 < of_rank(r).size(); ++k) {
      action &first = of_rank(r)[k], &second = of_rank(r)[k + 1];
      if (!(detail::is_send(first.kind) && detail::is_receive(second.kind)) &&
          !(detail::is_receive(first.kind) && detail::is_send(second.kind)))
        continue;
      const int peer = detail::peer_rank(order, first);
      if (peer < r || detail::peer_rank(order, second) != peer) continue;  // each pair of ranks once
      auto& there = of_rank(peer);
      const auto other = as_size(std::find(there.begin(), there.end(), detail::other_end(first)) - there.begin());
      if (other + 1 >= there.size() || there[other + 1] != detail::other_end(second)) continue;
      if (!is_single(of_rank(r), k) || !is_single(of_rank(r), k + 1) || !is_single(there, other) || !is_single(there, other + 1))
        continue;
      second.joined = there[other + 1].joined = true;
      if (!detail::unchecked::check_issue_order(order, issued).empty()) second.joined = there[other + 1].joined = false;
    }
  return issued;
}

}  // namespace hetsched
