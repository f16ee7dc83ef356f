// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

/// Runs the lanes of a schedule until none can go on. A lane takes its events in order; an event (an action and those joined
/// to it) begins when the lane has done those before it and every result that its actions need is there, and is done when it
/// has begun at the other end of its transfers and reductions, too: a receive waits for its send to have begun, under
/// rendezvous a send for its receive. Where no transfer is listed, rendezvous means that a receive is made when its lane has
/// come to the action that takes the tensor, that a boundary delivers in the order in which its tensors were computed, and
/// that sends hold up nobody.
/// Requires: the schedule is complete.
/// Complexity: O(actions + needs), whatever the order: a lane waits for one action at a time and is woken by it.
class lane_run {
 public:
  /// `met`: gets all actions in the order in which they begin; of a transfer or reduction only that of the rank that comes last.
  lane_run(const schedule& order, const action_index& index, send_semantics under, bool lists_transfers,
           std::vector<action>* met = nullptr)
      : order_(order),
        index_(index),
        met_(met),
        rendezvous_(under == send_semantics::rendezvous),
        front_(order.lanes.size(), 0),
        begun_(order.lanes.size(), 0),
        next_waiter_(order.lanes.size(), -1),
        wait_(order.lanes.size()),
        status_(as_size(index.size()), waiting),
        waiter_(as_size(index.size()), -1) {
    if (rendezvous_ && !lists_transfers) order_boundaries();
    for (std::size_t l = order.lanes.size(); l-- > 0;) ready_.push_back(static_cast<int>(l));
    while (!ready_.empty()) {
      const int l = ready_.back();
      ready_.pop_back();
      advance(as_size(l));
    }
  }

  [[nodiscard]] bool finished() const {
    for (std::size_t l = 0; l < front_.size(); ++l)
      if (front_[l] < order_.lanes[l].actions.size()) return false;
    return true;
  }

  /// Every cycle of lanes of which each waits for an action that the next has not come to, as a sentence; none if finished.
  [[nodiscard]] std::vector<std::string> cycles() const {
    std::vector<std::string> found;
    std::vector<int> visit(front_.size(), 0);
    for (std::size_t start = 0; start < front_.size(); ++start) {
      const int round = static_cast<int>(start) + 1;
      std::size_t l = start;
      while (visit[l] == 0 && front_[l] < order_.lanes[l].actions.size()) {
        visit[l] = round;
        l = lane_of(wait_[l].awaited);
      }
      if (visit[l] != round) continue;
      std::string text;
      std::size_t at = l;
      do {
        const auto& w = wait_[at];
        if (text.empty()) text = name(w.blocked);
        text += " waits for " + name(w.awaited);
        if (w.for_channel) text += ", whose input the channel delivers first";
        at = lane_of(w.awaited);
        const int next = wait_[at].blocked;
        if (w.awaited != next) text += (same_event(w.awaited, next) ? ", one event with " : ", behind ") + name(next);
        if (at != l) text += ", which";
      } while (at != l);
      found.push_back(std::move(text));
    }
    return found;
  }

 private:
  enum state : unsigned char { waiting, begun, done };
  struct wait {
    int blocked = -1;          ///< the action that cannot go on
    int awaited = -1;          ///< the one that it waits for
    bool for_channel = false;  ///< not for its result, but for its place in a channel
  };

  /// Which microbatch each boundary delivers before which.
  void order_boundaries() {
    const auto cells = index_cells();
    std::vector<int> last(2 * as_size(order_.directions) * as_size(order_.stages), -1);
    earlier_.assign(2 * cells, -1);
    for (const auto& l : order_.lanes)
      for (const auto& a : l.actions) {
        if (!makes_tensor(a.kind)) continue;
        const bool gradient = makes_gradient(a.kind);
        auto& before = last[cell(gradient, a) / as_size(order_.microbatches)];
        earlier_[cell(gradient, a)] = std::exchange(before, a.microbatch);
      }
  }
  [[nodiscard]] std::size_t index_cells() const {
    return as_size(order_.directions) * as_size(order_.stages) * as_size(order_.microbatches);
  }
  /// Of what action a produces.
  [[nodiscard]] std::size_t cell(bool gradient, const action& a) const {
    const auto stage =
        as_size(gradient ? order_.directions + a.direction : a.direction) * as_size(order_.stages) + as_size(a.stage);
    return stage * as_size(order_.microbatches) + as_size(a.microbatch);
  }

  /// The action that takes the tensor which the boundary into `a` delivers before that of `a`; -1: none.
  [[nodiscard]] int delivered_before(const action& a) const {
    using enum action_kind;
    if (earlier_.empty() || !makes_tensor(a.kind)) return -1;
    const bool gradient = makes_gradient(a.kind);
    action producer = a;
    producer.stage += gradient ? 1 : -1;
    if (producer.stage < 0 || producer.stage == order_.stages) return -1;
    if (order_.rank(a.direction, a.stage) == order_.rank(a.direction, producer.stage)) return -1;
    const int m = earlier_[cell(gradient, producer)];
    if (m < 0) return -1;
    if (!gradient) return index_.find(forward, a.direction, a.stage, m);
    const int whole = index_.find(backward, a.direction, a.stage, m);
    return whole >= 0 ? whole : index_.find(backward_input, a.direction, a.stage, m);
  }

  [[nodiscard]] bool is_done(int n) const { return at(status_, n) == done; }
  [[nodiscard]] bool has_begun(int n) const { return at(status_, n) != waiting; }

  void set(std::size_t first, std::size_t last, state s) {
    for (std::size_t n = first; n < last; ++n) {
      status_[n] = s;
      for (int l = std::exchange(waiter_[n], -1); l >= 0; l = at(next_waiter_, l)) ready_.push_back(l);
    }
  }

  bool block(std::size_t l, std::size_t position, int awaited, bool for_channel) {
    wait_[l] = {index_.lane_first[l] + static_cast<int>(position), awaited, for_channel};
    next_waiter_[l] = std::exchange(at(waiter_, awaited), static_cast<int>(l));
    return false;
  }

  void advance(std::size_t l) {
    const auto& actions = order_.lanes[l].actions;
    const auto offset = as_size(index_.lane_first[l]);
    while (front_[l] < actions.size()) {
      std::size_t end = front_[l] + 1;
      while (end < actions.size() && actions[end].joined) ++end;
      if (!begun_[l]) {
        for (std::size_t k = front_[l]; k < end; ++k)
          if (!can_begin(l, k)) return;
        begun_[l] = 1;
        set(offset + front_[l], offset + end, begun);
        for (std::size_t k = front_[l]; met_ && k < end; ++k)
          if (meets(l, k) < 0) met_->push_back(actions[k]);
      }
      for (std::size_t k = front_[l]; k < end; ++k)
        if (!can_end(l, k)) return;
      set(offset + front_[l], offset + end, done);
      front_[l] = end;
      begun_[l] = 0;
    }
  }

  bool can_begin(std::size_t l, std::size_t k) {
    const auto& a = order_.lanes[l].actions[k];
    if (is_receive(a.kind)) {  // begins at any time once it is posted, and ends when the send has begun
      const int post = find_post(index_, a);
      return post < 0 || is_done(post) || block(l, k, post, false);
    }
    int missing = -1;
    for_each_need(order_, index_, a, [&](int n) {
      if (missing < 0 && !is_done(n)) missing = n;
    });
    if (missing >= 0) return block(l, k, missing, false);
    if (const int n = delivered_before(a); n >= 0 && !is_done(n)) return block(l, k, n, true);
    return true;
  }

  bool can_end(std::size_t l, std::size_t k) {
    const int n = meets(l, k);
    return n < 0 || block(l, k, n, false);
  }

  /// The other end of a transfer or reduction that has not begun yet; -1: there is none.
  [[nodiscard]] int meets(std::size_t l, std::size_t k) const {
    const auto& a = order_.lanes[l].actions[k];
    if (is_receive(a.kind) || (rendezvous_ && is_send(a.kind))) {
      const auto other = other_end(a);
      const int n = index_.find(other.kind, other.direction, other.stage, other.microbatch);
      if (!has_begun(n)) return n;
    } else if (a.kind == action_kind::reduce_gradients) {  // a collective of the ranks that hold copies of the stage
      for (int c = 0; c < order_.directions; ++c) {
        const int n = index_.find(a.kind, c, a.stage, 0);
        if (order_.rank(c, a.stage) != order_.lanes[l].rank && n >= 0 && !has_begun(n)) return n;
      }
    }
    return -1;
  }

  [[nodiscard]] std::size_t lane_of(int n) const {
    const auto& first = index_.lane_first;
    return as_size(std::upper_bound(first.begin(), first.end(), n) - first.begin()) - 1;
  }
  [[nodiscard]] const action& action_at(int n) const {
    const auto l = lane_of(n);
    return at(order_.lanes[l].actions, n - index_.lane_first[l]);
  }
  [[nodiscard]] std::string name(int n) const {
    return "rank " + std::to_string(order_.lanes[lane_of(n)].rank) + " " + to_text(action_at(n));
  }
  [[nodiscard]] bool same_event(int a, int b) const {
    if (a > b) std::swap(a, b);
    while (b > a && action_at(b).joined) --b;
    return a == b;
  }

  const schedule& order_;
  const action_index& index_;
  std::vector<action>* met_;
  bool rendezvous_;
  std::vector<std::size_t> front_;  ///< per lane: the first action of the event that it has come to
  std::vector<char> begun_;         ///< per lane: whether that event has begun
  std::vector<int> next_waiter_;    ///< per lane: the next of those that wait for the same action
  std::vector<wait> wait_;
  std::vector<state> status_;
  std::vector<int> waiter_;   ///< per action: the first lane that waits for it
  std::vector<int> earlier_;  ///< per produced tensor: the microbatch that its boundary delivers before
  std::vector<int> ready_;
};

/// Sends of one rank to another whose receives are listed the other way round. In lanes without groups such schedules get
/// stuck, but the members of a group start together; their tensors would be taken for each other.
/// Complexity: O(actions).
[[nodiscard]] inline std::vector<std::string> crossed_channels(const schedule& order, const action_index& index) {
  std::vector<std::string> found;
  std::vector<int> last(as_size(order.ranks), -1);
  for (std::size_t l = 0; l < order.lanes.size(); ++l) {
    const auto& actions = order.lanes[l].actions;
    std::fill(last.begin(), last.end(), -1);
    for (std::size_t k = 0; k < actions.size(); ++k) {
      if (!is_send(actions[k].kind)) continue;
      const auto peer = as_size(peer_rank(order, actions[k]));
      const auto receive = other_end(actions[k]);
      const int taken = index.find(receive.kind, receive.direction, receive.stage, receive.microbatch);
      const int before = std::exchange(last[peer], static_cast<int>(k));
      if (before < 0) continue;
      const auto first = other_end(at(actions, before));
      const int first_taken = index.find(first.kind, first.direction, first.stage, first.microbatch);
      const auto lane_end = std::upper_bound(index.lane_first.begin(), index.lane_first.end(), taken);
      if (first_taken < taken || (lane_end != index.lane_first.end() && first_taken >= *lane_end)) continue;
      const auto from = "rank " + std::to_string(order.lanes[l].rank) + " ", to = "rank " + std::to_string(peer) + " ";
      found.push_back(from + to_text(at(actions, before)) + " comes before " + from + to_text(actions[k]) +
                      " in the channel, but " + to + to_text(receive) + " before " + to + to_text(first));
    }
  }
  return found;
}

/// The deadlocks of a complete schedule under one semantics of sends, with their cycles in text form.
/// Complexity: O(actions + needs).
[[nodiscard]] inline std::vector<std::string> deadlocks(const schedule& order, const action_index& index, send_semantics under) {
  const bool direct = index.lists(action_kind::send_activation) || index.lists(action_kind::send_gradient);
  const bool staged = index.lists(action_kind::network_activation) || index.lists(action_kind::network_gradient);
  const lane_run run(order, index, under, direct || staged);
  if (!run.finished()) return run.cycles();
  if (under == send_semantics::rendezvous && direct) return crossed_channels(order, index);
  return {};
}

}  // namespace hetsched::detail
