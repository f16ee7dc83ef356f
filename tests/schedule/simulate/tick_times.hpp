// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched::test {

/// The rules of simulate() played tick by tick with real queues, for workloads whose times are whole numbers. It asks for
/// nothing else of the library than the types. Precondition: a complete schedule.
class tick_times {
 public:
  using name = std::tuple<action_kind, int, int, int>;  // kind, direction, stage, microbatch

  struct times {
    int start = 0, end = 0, rank = 0, peer = -1;
    friend bool operator==(const times&, const times&) = default;
  };

  bool deadlock = false;
  std::map<name, times> actions;  ///< as a timeline lists them
  std::vector<int> rank_start, rank_end;
  std::vector<double> rank_busy, wire_busy;
  double exposed = 0, transfers = 0;

  tick_times(const workload& w, const schedule& order, send_semantics semantics) : w_(w), order_(order), semantics_(semantics) {
    rank_start.assign(size(order.ranks), -1);
    rank_end.assign(size(order.ranks), 0);
    rank_busy.assign(size(order.ranks), 0);
    wire_busy.assign(w.wires.size(), 0);
    lines_.resize(w.wires.size());
    worked_until_.assign(size(order.ranks), 0);
    queues_.resize(order.lanes.size());
    int number = 0;
    for (std::size_t l = 0; l < order.lanes.size(); ++l)
      for (const auto& a : order.lanes[l].actions) {
        listed_[key(a)] = number++;
        if (queues_[l].events.empty() || !a.joined) queues_[l].events.emplace_back();
        queues_[l].events.back().push_back(a);
      }
    for (now_ = 0;; ++now_) {
      do
        while (settle()) {
        }
      while (serve_one());
      if (finished()) break;
      if (!pending()) {
        deadlock = true;
        break;
      }
    }
  }

 private:
  struct queue {
    std::vector<std::vector<action>> events;
    std::size_t next = 0;
    bool begun = false;
    int begun_at = 0;
    int ends = -1;  // of own work
  };
  /// One leg on its way. Legs of a transfer follow each other.
  struct leg {
    action listed;  // what asked for it: a computation, send, d2h, network or h2d
    action_kind shown = action_kind::forward;
    hop over;
    int number = 0, of = 1;
    int from = 0, to = 0;  // stages
    bool served = false, flying = false, freed = false, arrived = false;
    std::set<int> admitted;
    int start = 0;
  };
  struct line {
    std::deque<std::size_t> waiting;
    int used = 0;
  };

  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  static name key(const action& a) { return {a.kind, a.direction, a.stage, a.microbatch}; }
  static name key(const action& a, action_kind kind, int stage) { return {kind, a.direction, stage, a.microbatch}; }
  bool lists(const name& n) const { return listed_.count(n) > 0; }
  int rank(const action& a, int stage) const { return order_.rank(a.direction, stage); }

  static bool own_work(action_kind k) {
    return is_compute(k) || k == action_kind::all_gather || k == action_kind::release || k == action_kind::reduce_scatter ||
           k == action_kind::optimizer;
  }
  int seconds(const action& a) const {
    const auto& w = w_.at(a.direction, a.stage);
    double s = 0;
    if (a.kind == action_kind::forward) s = w.forward_s;
    if (a.kind == action_kind::backward) s = w.backward_s;
    if (a.kind == action_kind::backward_input) s = w.backward_s - w.weight_backward_s;
    if (a.kind == action_kind::backward_weight) s = w.weight_backward_s;
    if (a.kind == action_kind::recompute) s = w.recompute_s;
    if (a.kind == action_kind::all_gather) s = w.all_gather_s;
    if (a.kind == action_kind::reduce_scatter) s = w.reduce_scatter_s;
    if (a.kind == action_kind::optimizer) s = w.optimizer_s;
    return static_cast<int>(s);
  }

  /// The results that an action needs: (name, whether it has to come from another rank without a listed transfer).
  std::vector<std::pair<name, bool>> needs(const action& a) const {
    using enum action_kind;
    std::vector<std::pair<name, bool>> all;
    const int s = a.stage;
    const auto one_of = [&](std::vector<name> names) {
      for (const auto& n : names)
        if (lists(n)) return n;
      return names.front();
    };
    const auto back = [&](int stage) { return one_of({key(a, backward, stage), key(a, backward_input, stage)}); };
    const auto parameters = [&](action_kind kind) { return name{kind, a.direction, s, no_microbatch}; };
    if (is_compute(a.kind) && a.kind != backward_weight && a.kind != recompute && lists(parameters(all_gather)))
      all.push_back({parameters(all_gather), false});
    if (a.kind == forward && s > 0) {
      if (rank(a, s) == rank(a, s - 1))
        all.push_back({key(a, forward, s - 1), false});
      else if (lists(key(a, receive_activation, s)))
        all.push_back({key(a, receive_activation, s), false});
      else if (lists(key(a, h2d_activation, s)))
        all.push_back({key(a, h2d_activation, s), false});
      else
        all.push_back({key(a, forward, s - 1), true});
    }
    if (a.kind == backward || a.kind == backward_input) {
      all.push_back({one_of({key(a, recompute, s), key(a, forward, s)}), false});
      if (s + 1 < order_.stages) {
        if (rank(a, s) == rank(a, s + 1))
          all.push_back({back(s + 1), false});
        else if (lists(key(a, receive_gradient, s)))
          all.push_back({key(a, receive_gradient, s), false});
        else if (lists(key(a, h2d_gradient, s)))
          all.push_back({key(a, h2d_gradient, s), false});
        else
          all.push_back({back(s + 1), true});
      }
    }
    if (a.kind == backward_weight) all.push_back({key(a, backward_input, s), false});
    if (a.kind == recompute || a.kind == send_activation || a.kind == d2h_activation) all.push_back({key(a, forward, s), false});
    if (a.kind == send_gradient || a.kind == d2h_gradient) all.push_back({back(s), false});
    if (a.kind == network_activation) all.push_back({key(a, d2h_activation, s), false});
    if (a.kind == network_gradient) all.push_back({key(a, d2h_gradient, s), false});
    if (a.kind == h2d_activation) all.push_back({key(a, network_activation, s - 1), false});
    if (a.kind == h2d_gradient) all.push_back({key(a, network_gradient, s + 1), false});
    if (a.kind == reduce_scatter || a.kind == reduce_gradients || a.kind == optimizer) {
      for (const auto& [n, unused] : listed_) {
        const auto [kind, direction, stage, microbatch] = n;
        if (direction != a.direction || stage != s) continue;
        if (kind == backward || kind == backward_weight || (kind == reduce_scatter && a.kind != reduce_scatter) ||
            (kind == reduce_gradients && a.kind == optimizer))
          all.push_back({n, false});
      }
    }
    return all;
  }
  bool has(const name& n, bool remote) const { return (remote ? there_ : here_).count(n) > 0; }

  /// One thing that happens now and needs no wire to be asked for.
  bool settle() {
    for (std::size_t k = 0; k < legs_.size(); ++k) {
      leg& g = legs_[k];
      if (!g.flying) continue;
      if (!g.freed && g.start + static_cast<int>(g.over.occupied_s) == now_) {
        for (const int wire : g.admitted) --lines_[size(wire)].used;
        g.freed = true;
        return true;
      }
      if (!g.arrived && g.freed && g.start + static_cast<int>(g.over.occupied_s + g.over.latency_s) == now_) {
        g.arrived = true;
        arrive(k);
        return true;
      }
    }
    for (std::size_t wire = 0; wire < lines_.size(); ++wire) {
      line& at = lines_[wire];
      if (at.waiting.empty() || at.used == w_.wires[wire].capacity) continue;
      ++at.used;
      legs_[at.waiting.front()].admitted.insert(static_cast<int>(wire));
      at.waiting.pop_front();
      return true;
    }
    for (auto& g : legs_)
      if (g.served && !g.flying && g.admitted.size() == wires_of(g.over).size()) {
        g.flying = true;
        g.start = now_;
        return true;
      }
    for (std::size_t l = 0; l < queues_.size(); ++l)
      if (advance(l)) return true;
    return false;
  }

  static std::set<int> wires_of(const hop& h) {
    std::set<int> all(h.wires.begin(), h.wires.end());
    all.erase(-1);
    return all;
  }

  void arrive(std::size_t k) {
    using enum action_kind;
    const leg g = legs_[k];
    const int end = now_;
    actions[key(g.listed, g.shown, g.shown == h2d_activation || g.shown == h2d_gradient ? g.to : g.from)] = {
        g.start, end, rank(g.listed, g.from), rank(g.listed, g.to)};
    for (const int wire : wires_of(g.over)) wire_busy[size(wire)] += g.over.occupied_s;
    const auto name_of_listed = key(g.listed);
    if (is_compute(g.listed.kind) || g.listed.kind == send_activation || g.listed.kind == send_gradient) {
      if (g.number == 0) set_out_[name_of_listed] = g.start;
      if (g.number + 1 < g.of) {
        ask(g.listed, g.number + 1);
        return;
      }
      transfers += end - set_out_[name_of_listed];
    } else {
      const bool first = g.listed.kind == d2h_activation || g.listed.kind == d2h_gradient;
      set_out_[name_of_listed] = first ? g.start : set_out_.at(needs(g.listed).front().first);
      if (g.listed.kind == h2d_activation || g.listed.kind == h2d_gradient) transfers += end - set_out_[name_of_listed];
      here_.insert(name_of_listed);
    }
    there_.insert(name_of_listed);
    arrived_at_[name_of_listed] = end;
  }

  static bool sends(action_kind k) { return k == action_kind::send_activation || k == action_kind::send_gradient; }
  static bool receives(action_kind k) { return k == action_kind::receive_activation || k == action_kind::receive_gradient; }
  static action other(action a) {
    using enum action_kind;
    if (a.kind == send_activation) return {receive_activation, false, a.direction, a.stage + 1, a.microbatch};
    if (a.kind == receive_activation) return {send_activation, false, a.direction, a.stage - 1, a.microbatch};
    if (a.kind == send_gradient) return {receive_gradient, false, a.direction, a.stage - 1, a.microbatch};
    return {send_gradient, false, a.direction, a.stage + 1, a.microbatch};
  }
  /// Whether this is the last reduction of the stage that its rank lists.
  bool reduces(const action& a) const {
    for (int c = 0; c < order_.directions; ++c)
      if (order_.rank(c, a.stage) == rank(a, a.stage) && listed_.at({a.kind, c, a.stage, no_microbatch}) > listed_.at(key(a)))
        return false;
    return true;
  }
  bool begun(const name& n) const {
    for (const auto& q : queues_)
      for (std::size_t k = 0; k < q.events.size() && k <= q.next; ++k)
        for (const auto& a : q.events[k])
          if (key(a) == n) return k < q.next || q.begun;
    return false;
  }

  bool advance(std::size_t l) {
    queue& q = queues_[l];
    if (q.next == q.events.size()) return false;
    const auto& event = q.events[q.next];
    const int r = order_.lanes[l].rank;
    if (!q.begun) {
      for (const auto& a : event)
        if (!receives(a.kind))
          for (const auto& [n, remote] : needs(a))
            if (!has(n, remote)) return false;
      q.begun = true;
      q.begun_at = now_;
      if (own_work(event.front().kind)) {
        double sum = 0;
        for (const auto& a : event) sum += seconds(a);
        if (event.size() > 1) sum *= w_.fused_factor;
        q.ends = now_ + static_cast<int>(sum);
        if (is_compute(event.front().kind) || event.front().kind == action_kind::optimizer) rank_busy[size(r)] += sum;
        if (rank_start[size(r)] < 0) rank_start[size(r)] = now_;
        for (const auto& a : event)
          for (const auto& [n, remote] : needs(a))
            if (const auto input = arrived_at_.find(n); input != arrived_at_.end() && (remote || !is_compute(std::get<0>(n))))
              exposed += std::max(0, std::min(now_, input->second) - std::max(worked_until_[size(r)], set_out_.at(n)));
      } else {
        for (const auto& a : event) {
          if (a.kind == action_kind::reduce_gradients || receives(a.kind)) continue;
          if (sends(a.kind) && semantics_ == send_semantics::rendezvous) continue;
          ask(a, 0);
        }
      }
      return true;
    }
    if (own_work(event.front().kind)) {
      if (q.ends > now_) return false;
      for (const auto& a : event) {
        here_.insert(key(a));
        actions[key(a)] = {q.begun_at, now_, r, -1};
        if (is_shipped(a)) ask(a, 0);
      }
      rank_end[size(r)] = std::max(rank_end[size(r)], now_);
      if (order_.lanes[l].stream == stream::compute) worked_until_[size(r)] = now_;
      ++q.next;
      q.begun = false;
      return true;
    }
    for (const auto& a : event)
      if (sends(a.kind) && semantics_ == send_semantics::rendezvous && met_.count(key(a)) == 0 && begun(key(other(a)))) {
        met_.insert(key(a));
        ask(a, 0);
        return true;
      }
    for (const auto& a : event)
      if (a.kind == action_kind::reduce_gradients && reduces(a) && reducing_.count(a.stage) == 0) {
        bool all = true;
        double most = 0;
        for (int c = 0; c < order_.directions; ++c) {
          all = all && (!reduces({a.kind, false, static_cast<std::int16_t>(c), a.stage, no_microbatch}) ||
                        begun({a.kind, c, a.stage, no_microbatch}));
          most = std::max(most, w_.at(c, a.stage).reduce_gradients_s);
        }
        if (!all) continue;
        reducing_[a.stage] = {now_, now_ + static_cast<int>(most)};
        for (int c = 0; c < order_.directions; ++c) {
          const auto at = size(order_.rank(c, a.stage));
          if (rank_start[at] < 0) rank_start[at] = now_;
        }
        return true;
      }
    for (const auto& a : event)
      if (!member_ended(a)) return false;
    for (const auto& a : event) {
      if (!is_transfer(a.kind) || sends(a.kind) || receives(a.kind)) here_.insert(key(a));  // others: once arrived
      if (receives(a.kind)) {
        arrived_at_[key(a)] = now_;
        set_out_[key(a)] = set_out_.at(key(other(a)));
      }
      if (a.kind != action_kind::reduce_gradients) continue;
      const auto [start, end] = reduces(a) ? reducing_.at(a.stage) : std::pair{q.begun_at, q.begun_at};
      if (rank_start[size(r)] < 0) rank_start[size(r)] = start;
      actions[key(a)] = {start, end, r, -1};
      rank_end[size(r)] = std::max(rank_end[size(r)], end);
    }
    ++q.next;
    q.begun = false;
    return true;
  }

  bool member_ended(const action& a) const {
    if (a.kind == action_kind::reduce_gradients) {
      if (!reduces(a)) return true;
      const auto found = reducing_.find(a.stage);
      return found != reducing_.end() && found->second.second <= now_;
    }
    if (receives(a.kind)) return there_.count(key(other(a))) > 0;
    if (sends(a.kind) && semantics_ == send_semantics::rendezvous) return there_.count(key(a)) > 0;
    for (const auto& g : legs_)
      if (key(g.listed) == key(a) && g.number == 0) return sends(a.kind) ? g.served : g.freed;
    return false;
  }

  /// Whether another rank takes the result of this computation without listed transfers.
  bool is_shipped(const action& a) const {
    using enum action_kind;
    const bool gradient = a.kind == backward || a.kind == backward_input;
    if (!gradient && a.kind != forward) return false;
    const int to = gradient ? a.stage - 1 : a.stage + 1;
    if (to < 0 || to >= order_.stages || rank(a, to) == rank(a, a.stage)) return false;
    return !lists(key(a, gradient ? receive_gradient : receive_activation, to)) &&
           !lists(key(a, gradient ? h2d_gradient : h2d_activation, to));
  }

  void ask(const action& a, int number) {
    using enum action_kind;
    const bool gradient = a.kind == backward || a.kind == backward_input || moves_gradient(a.kind);
    const bool last = a.kind == h2d_activation || a.kind == h2d_gradient;
    leg g;
    g.listed = a;
    g.number = number;
    g.from = last ? (gradient ? a.stage + 1 : a.stage - 1) : a.stage;
    g.to = last ? a.stage : gradient ? a.stage - 1 : a.stage + 1;
    const tensor_path& way = gradient ? w_.gradient(a.direction, g.to) : w_.activation(a.direction, g.from);
    const hop hops[] = {way.d2h, way.network, way.h2d};
    const action_kind names[] = {gradient ? d2h_gradient : d2h_activation, gradient ? network_gradient : network_activation,
                                 gradient ? h2d_gradient : h2d_activation};
    if (is_compute(a.kind) || sends(a.kind)) {
      g.of = way.staged ? 3 : 1;
      g.shown = way.staged ? names[number] : gradient ? send_gradient : send_activation;
      g.over = way.staged ? hops[number] : way.network;
    } else {
      for (int k = 0; k < 3; ++k)
        if (a.kind == names[k]) g.over = hops[k];
      g.shown = a.kind;
    }
    legs_.push_back(g);
  }

  /// Of the legs asked for by now, the one whose tensor was made by the first listed computation gets in line.
  bool serve_one() {
    using enum action_kind;
    const auto turn = [&](const leg& g) {
      const bool gradient =
          g.shown == send_gradient || g.shown == d2h_gradient || g.shown == network_gradient || g.shown == h2d_gradient;
      const auto made = [&](action_kind kind) {
        const auto found = listed_.find(key(g.listed, kind, g.from));
        return found == listed_.end() ? -1 : found->second;
      };
      const int origin = gradient ? std::max(made(backward), made(backward_input)) : made(forward);
      const bool h2d = g.shown == h2d_gradient || g.shown == h2d_activation;
      const bool d2h = g.shown == d2h_gradient || g.shown == d2h_activation;
      return std::pair{origin, d2h ? 0 : h2d ? 2 : 1};
    };
    std::size_t first = legs_.size();
    for (std::size_t k = 0; k < legs_.size(); ++k)
      if (!legs_[k].served && (first == legs_.size() || turn(legs_[k]) < turn(legs_[first]))) first = k;
    if (first == legs_.size()) return false;
    legs_[first].served = true;
    for (const int wire : wires_of(legs_[first].over)) lines_[size(wire)].waiting.push_back(first);
    return true;
  }

  bool finished() const {
    return std::all_of(queues_.begin(), queues_.end(), [](const queue& q) { return q.next == q.events.size(); }) &&
           std::all_of(legs_.begin(), legs_.end(), [](const leg& g) { return g.arrived; });
  }
  bool pending() const {
    for (const auto& q : queues_)
      if (q.begun && q.ends > now_) return true;
    for (const auto& [stage, when] : reducing_)
      if (when.second > now_) return true;
    return std::any_of(legs_.begin(), legs_.end(), [](const leg& g) { return g.flying && !g.arrived; });
  }

  const workload& w_;
  const schedule& order_;
  send_semantics semantics_;
  int now_ = 0;
  std::map<name, int> listed_;
  std::set<name> here_, there_, met_;
  std::map<name, int> set_out_, arrived_at_;
  std::map<int, std::pair<int, int>> reducing_;
  std::vector<queue> queues_;
  std::vector<leg> legs_;
  std::vector<line> lines_;
  std::vector<int> worked_until_;
};

}  // namespace hetsched::test
