// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

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

namespace hetsched::detail {

/// Actions that wait for each other, where both ends of a transfer, and all that is joined, are done as one.
class joined_actions {
 public:
  joined_actions(const schedule& order, const action_index& index) : index_(index) {
    const auto count = as_size(index.size());
    for (const auto& l : order.lanes) {
      int before = -1;
      for (const auto& a : l.actions) {
        const int n = number(a);
        if (!is_receive(a.kind))
          for_each_need(order, index, a, [&](int need) {
            if (need >= 0) needs_.emplace_back(need, n);
          });
        else if (const int post = find_post(index, a); post >= 0)
          needs_.emplace_back(post, n);
        if (is_send(a.kind)) same_.emplace_back(n, number(other_end(a)));
        if (is_issued(order, a)) {
          if (a.kind == action_kind::reduce_gradients)
            for (int c = 0; c < order.directions; ++c)
              if (const int other = index.find(a.kind, c, a.stage, 0); other >= 0) same_.emplace_back(n, other);
          continue;
        }
        if (before >= 0) (a.joined ? same_ : needs_).emplace_back(before, n);
        before = n;
      }
    }
    set_levels(count);
  }

  [[nodiscard]] int number(const action& a) const { return index_.find(a.kind, a.direction, a.stage, std::max(a.microbatch, 0)); }
  /// Of how many actions an action is the end, at least one behind the other, if nothing is issued in an order.
  [[nodiscard]] int level(const action& a) const { return at(level_, number(a)); }

  /// Whether there is no cycle where ranks issue in this order.
  [[nodiscard]] bool come_to_an_end(const issue_order& issued) const {
    auto same = same_;
    auto needs = needs_;
    for (const auto& list : issued.of_rank)
      for (std::size_t k = 1; k < list.size(); ++k)
        (list[k].joined ? same : needs).emplace_back(number(list[k - 1]), number(list[k]));
    std::vector<int> level(as_size(index_.size()), 0);
    return run(same, needs, level);
  }

 private:
  using pairs = std::vector<std::pair<int, int>>;

  void set_levels(std::size_t count) {
    level_.assign(count, 0);
    (void)run(same_, needs_, level_);
  }
  /// Whether all can be done; level: see above.
  static bool run(const pairs& same, const pairs& needs, std::vector<int>& level) {
    const auto count = level.size();
    std::vector<int> as(count);
    for (std::size_t k = 0; k < count; ++k) as[k] = static_cast<int>(k);
    const auto find = [&](int k) {
      while (at(as, k) != k) k = at(as, k) = at(as, at(as, k));
      return k;
    };
    for (const auto& [a, b] : same) at(as, find(a)) = find(b);
    std::vector<std::vector<int>> then(count);
    std::vector<int> missing(count, 0), ready, reached(count, 0);
    for (const auto& [a, b] : needs) {
      at(then, find(a)).push_back(find(b));
      ++at(missing, find(b));
    }
    std::size_t wholes = 0, done = 0;
    for (std::size_t k = 0; k < count; ++k)
      if (find(static_cast<int>(k)) == static_cast<int>(k) && (++wholes, missing[k] == 0)) ready.push_back(static_cast<int>(k));
    for (; done < ready.size(); ++done)
      for (const int next : at(then, ready[done])) {
        at(reached, next) = std::max(at(reached, next), at(reached, ready[done]) + 1);
        if (--at(missing, next) == 0) ready.push_back(next);
      }
    for (std::size_t k = 0; k < count; ++k) level[k] = at(reached, find(static_cast<int>(k)));
    return done == wholes;
  }

  const action_index& index_;
  pairs same_, needs_;
  std::vector<int> level_;
};

}  // namespace hetsched::detail

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

HETSCHED_INLINE issue_order group_relays(const schedule& order, issue_order issued) {
  if (const auto wrong = check_issue_order(order, issued); !wrong.empty()) throw input_error(wrong.front());
  const auto index = detail::sound_index(order);
  const detail::joined_actions actions(order, index);
  std::vector<action*> relays;  // the second of each
  for (auto& list : issued.of_rank)
    for (std::size_t k = 0; k + 1 < list.size(); ++k) {
      const action& first = list[k];
      action& second = list[k + 1];
      const bool is_relay = (detail::is_send(first.kind) && detail::is_receive(second.kind)) ||
                            (detail::is_receive(first.kind) && detail::is_send(second.kind));
      const bool are_single = !first.joined && !second.joined && (k + 2 == list.size() || !list[k + 2].joined) &&
                              (relays.empty() || relays.back() != &first);
      if (is_relay && are_single && detail::peer_rank(order, first) != detail::peer_rank(order, second) &&
          actions.level(first) == actions.level(second))
        relays.push_back(&second);
    }
  // All of them, or the halves that can be joined.
  const auto join = [&](const auto& self, std::size_t first, std::size_t last) -> void {
    if (first == last) return;
    for (std::size_t k = first; k < last; ++k) relays[k]->joined = true;
    if (actions.come_to_an_end(issued)) return;
    for (std::size_t k = first; k < last; ++k) relays[k]->joined = false;
    if (last - first == 1) return;
    const auto middle = first + (last - first) / 2;
    self(self, first, middle);
    self(self, middle, last);
  };
  join(join, 0, relays.size());
  return issued;
}

}  // namespace hetsched
