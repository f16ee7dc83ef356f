// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/passes.hpp>

namespace hetsched::detail {

HETSCHED_INLINE bool sends(const schedule& order, const action& a, action& send) {
  const auto payload = traits_of(a.kind).payload;
  if (payload == action_payload::none) return false;
  const int to = next_stage(a);
  if (to < 0 || to == order.stages || order.rank(a.direction, to) == order.rank(a.direction, a.stage)) return false;
  send = a;
  send.kind = transfer_kind(payload, transfer_leg::send);
  send.joined = false;
  return true;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE schedule add_transfers(const schedule& order) {
  detail::validate_shape(order);
  for (const auto& l : order.lanes) {
    if (l.stream != stream::compute) throw input_error("transfers are added before the streams are split");
    for (const auto& a : l.actions)
      if (detail::expect_kind(a.kind); is_transfer(a.kind)) throw input_error("the schedule lists transfers: " + to_text(a));
  }
  const action_index index(order);
  const auto needs = dependencies(order, index);
  constexpr long long never = std::numeric_limits<long long>::max();

  schedule result = order;
  const std::size_t lanes = order.lanes.size();
  for (auto& l : result.lanes) l.actions.clear();
  std::vector<std::size_t> front(lanes, 0), end(lanes, 0);  // per lane: the event that comes next or is under way
  std::vector<long long> until(lanes, never);               // when that event ends; never: it has not begun
  std::vector<char> done(as_size(index.size()), 0);

  const auto can_begin = [&](std::size_t l) {
    const auto first = as_size(index.lane_first[l]);
    for (auto i = as_size(needs.first[first + front[l]]); i < as_size(needs.first[first + end[l]]); ++i)
      if (!at(done, needs.needs[i])) return false;
    return true;
  };
  for (long long now = 0; now != never;) {
    for (std::size_t l = 0; l < lanes; ++l) {  // what ends now, and its transfers
      if (until[l] != now) continue;
      const auto& actions = order.lanes[l].actions;
      for (std::size_t k = front[l]; k < end[l]; ++k) {
        done[as_size(index.lane_first[l]) + k] = 1;
        action send;
        if (!detail::sends(order, actions[k], send)) continue;
        result.lanes[l].actions.push_back(send);
        at(result.lanes, detail::peer_rank(order, send)).actions.push_back(detail::other_end(send));
      }
      front[l] = end[l];
      until[l] = never;
    }
    long long next = never;
    for (std::size_t l = 0; l < lanes; ++l) {  // what begins now
      const auto& actions = order.lanes[l].actions;
      if (until[l] == never && front[l] < actions.size()) {
        for (end[l] = front[l] + 1; end[l] < actions.size() && actions[end[l]].joined;) ++end[l];
        if (can_begin(l)) {
          until[l] = now;
          for (std::size_t k = front[l]; k < end[l]; ++k) {
            until[l] += actions[k].kind == action_kind::backward ? 2 : 1;
            result.lanes[l].actions.push_back(actions[k]);
          }
        }
      }
      next = std::min(next, until[l]);
    }
    now = next;
  }
  for (std::size_t l = 0; l < lanes; ++l)
    if (front[l] < order.lanes[l].actions.size())
      throw input_error("the schedule cannot run: rank " + std::to_string(order.lanes[l].rank) + " does not get beyond " +
                        to_text(order.lanes[l].actions[front[l]]));
  return result;
}

HETSCHED_INLINE schedule group_transfers(schedule order) {
  detail::validate_actions(order);
  for (auto& l : order.lanes) {
    if (l.stream != stream::compute) continue;
    int size = 0;  // of the group that the action before is in
    for (auto& a : l.actions) {
      const bool transfer = detail::is_send(a.kind) || detail::is_receive(a.kind);
      if (transfer && size > 0 && size < most_grouped_transfers) a.joined = true;
      size = !transfer ? 0 : a.joined ? size + 1 : 1;
    }
  }
  return order;
}

HETSCHED_INLINE schedule split_streams(const schedule& order) {
  using enum action_kind;
  detail::validate_actions(order);
  const auto stages = as_size(order.stages);
  std::vector<int> gathers(as_size(order.directions) * stages, 0);
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (a.kind == all_gather) ++gathers[as_size(a.direction) * stages + as_size(a.stage)];
  const auto stream_of = [&](const action& a) {
    if (is_transfer(a.kind)) return detail::stream_of(traits_of(a.kind).leg);
    const bool gathers_once = a.kind == all_gather && gathers[as_size(a.direction) * stages + as_size(a.stage)] == 1;
    return gathers_once || a.kind == reduce_scatter || a.kind == reduce_gradients ? stream::collective : stream::compute;
  };

  schedule result = order;
  const auto ranks = as_size(order.ranks);
  for (std::size_t r = 0; r < ranks; ++r) result.lanes[r].actions.clear();
  struct place {
    std::size_t lane;
    std::size_t event;  ///< the last that has put something there
  };
  // Per rank, its lanes that are there so far; few, so searched one by one.
  std::vector<std::vector<place>> places(ranks);
  for (std::size_t i = 0; i < result.lanes.size(); ++i) at(places, result.lanes[i].rank).push_back({i, 0});
  std::size_t event = 0;
  for (std::size_t r = 0; r < ranks; ++r)
    for (const auto& a : order.lanes[r].actions) {
      if (!a.joined) ++event;
      const auto s = stream_of(a);
      const bool pairwise = s == stream::send || s == stream::receive || s == stream::network;
      const int peer = pairwise ? detail::peer_rank(order, a) : -1;
      auto& own = places[r];
      auto at = std::find_if(own.begin(), own.end(), [&](const place& p) {
        return result.lanes[p.lane].stream == s && result.lanes[p.lane].peer == peer;
      });
      if (at == own.end()) {
        at = own.insert(own.end(), {result.lanes.size(), 0});
        result.lanes.push_back({.rank = static_cast<int>(r), .stream = s, .peer = peer, .actions = {}});
      }
      auto& out = result.lanes[at->lane].actions;
      out.push_back(a);
      out.back().joined = std::exchange(at->event, event) == event;
    }
  std::stable_sort(
      result.lanes.begin() + static_cast<std::ptrdiff_t>(ranks), result.lanes.end(),
      [](const lane& a, const lane& b) { return std::tie(a.rank, a.stream, a.peer) < std::tie(b.rank, b.stream, b.peer); });
  return result;
}

HETSCHED_INLINE schedule forwards_of(const schedule& order) {
  detail::validate_actions(order);
  std::vector<std::pair<int, int>> staged;  // ranks
  const auto known = [&](std::pair<int, int> ranks) { return std::find(staged.begin(), staged.end(), ranks) != staged.end(); };
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      if (!detail::is_network(a.kind)) continue;
      if (const std::pair ranks(l.rank, detail::peer_rank(order, a)); !known(ranks)) staged.push_back(ranks);
    }
  schedule result = order;
  std::erase_if(result.lanes, [](const lane& l) { return l.stream != stream::compute; });
  for (auto& l : result.lanes) {
    std::erase_if(l.actions, [](const action& a) { return a.kind != action_kind::forward; });
    for (auto& a : l.actions) a.joined = false;
  }
  if (staged.empty()) return result;
  return by_way_of_hosts(result, [&](int from, int to) { return known({from, to}); });
}

}  // namespace hetsched
