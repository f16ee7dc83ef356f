// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/simulate/simulate_test.cpp.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched::detail {

/// Plays a schedule once. Times follow from each other by max and +, so lanes run ahead of the clock as far as they can; only
/// requests to wires, which serve in the order of time, pass through a heap. Whatever is not known when a request is the
/// earliest follows from a later one, so its wires can be taken at once, each from when it gets room.
/// Complexity: O(A log L) for A actions and transfers, of which at most L are requested and not served at a time; O(A) memory.
class event_run {
 public:
  /// When the result of an action is there: [0] on its own rank, [1] where it is sent to.
  struct result {
    double at_s[2] = {-1, -1};  ///< -1: not known
    double sent_s = infinity;   ///< of what comes over a wire: when it set out
    int link[2] = {-1, -1};     ///< first lane that waits for it; once it is known, the logged action that made or brought it
  };
  /// The event at the head of a lane.
  struct head {
    int at = 0, end = 0, last = 0;  ///< first action, behind the last one; behind the last one of the lane
    int need = 0;                   ///< next of its needs
    int waiting = -1;               ///< next lane that waits for the same result
    int open = 0;                   ///< members that have not ended
    bool came = false;
    double come_s = 0, end_s = 0;  ///< it has its needs and its turn; its members have ended
    int cause = -1, end_cause = -1;
    double work_end_s = 0;  ///< of the last computation
  };

  /// Plays the graph, which must outlive the run, as must the workload.
  /// Throws: input_error for a workload that does not fit, and for a deadlock.
  event_run(const event_graph& graph, const workload& costs, send_semantics semantics, bool log_all)
      : graph_(&graph), costs_(&costs), rendezvous_(semantics == send_semantics::rendezvous) {
    const schedule& order = *graph.order;
    validate_fit(costs, order);
    validate(costs);
    results.resize(as_size(graph.size()));
    rank_start_s.assign(as_size(order.ranks), infinity);
    rank_end_s.assign(as_size(order.ranks), 0.0);
    rank_busy_s.assign(as_size(order.ranks), 0.0);
    wire_busy_s.assign(costs.wires.size(), 0.0);
    ports_.resize(costs.wires.size());
    meetings_.resize(graph.reductions.empty() ? 0 : as_size(order.stages));
    for (std::size_t l = 0; l < order.lanes.size(); ++l) {
      head h;
      h.at = graph.lane_first[l];
      h.last = graph.lane_first[l + 1];
      if (h.at < h.last) begin(h);
      heads_.push_back(h);
    }
    for (std::size_t l = heads_.size(); l-- > 0;) ready_.push_back(static_cast<int>(l));
    if (log_all) make_log();
    play();
  }

  std::vector<result> results;    ///< by action
  std::vector<timed_action> log;  ///< ordered as a timeline but for the times; empty unless all is logged
  std::vector<int> causes;        ///< by logged action: the one whose end let it start, -1: none
  std::vector<double> rank_start_s, rank_end_s, rank_busy_s, wire_busy_s;
  double transfer_s = 0;  ///< of all transfers, from setting out to arrival
  double exposed_s = 0;   ///< of these, what their receivers were idle for
  double makespan_s = 0;

  /// The event's own work: fused computations take less than their sum.
  [[nodiscard]] double event_work_s(int first, int end) const {
    double sum = 0;
    for (int n = first; n < end; ++n) {
      const action& a = graph_->at(n);
      sum += seconds_of(costs_->at(a.direction, a.stage), a.kind);
    }
    return end - first > 1 ? costs_->fused_factor * sum : sum;
  }

 private:
  /// A leg of a transfer asks for its wires. Served by time, then in the order in which the ranks list the computations.
  struct request {
    double time_s = 0;
    int origin = 0, leg = 0;
    int action = 0, cause = -1;
  };
  struct is_later {
    bool operator()(const request& a, const request& b) const {
      return a.time_s != b.time_s ? a.time_s > b.time_s : a.origin > b.origin;
    }
  };
  struct port {
    double free_s = 0;
    int cause = -1;
  };
  struct way {
    int from = 0, to = 0;  // ranks
    int stage = 0;         // that it leads to
    const tensor_path* over = nullptr;
  };
  struct meeting {  // of the directions of a stage that reduce their gradients
    int came = 0;
    double start_s = 0;
    int cause = -1;
  };

  void play() {
    while (true) {
      while (!ready_.empty()) {
        const int l = ready_.back();
        ready_.pop_back();
        advance(l);
      }
      if (requests_.empty()) break;
      std::pop_heap(requests_.begin(), requests_.end(), is_later{});
      const request r = requests_.back();
      requests_.pop_back();
      serve(r);
    }
    std::string stuck;
    for (std::size_t l = 0; l < heads_.size(); ++l) {
      const head& h = heads_[l];
      if (h.at == h.last) continue;
      const lane& at_lane = graph_->lane_at(static_cast<int>(l));
      stuck += (stuck.empty() ? "deadlock: rank " : ", rank ") + std::to_string(at_lane.rank) +
               (at_lane.stream == stream::compute
                    ? " waits at "
                    : " (" + std::string(at(stream_names, static_cast<int>(at_lane.stream))) + ") waits at ") +
               to_text(graph_->at(h.at));
    }
    if (!stuck.empty()) throw input_error(stuck);
    for (std::size_t r = 0; r < rank_end_s.size(); ++r) {
      if (rank_start_s[r] > rank_end_s[r]) rank_start_s[r] = 0;
      makespan_s = std::max(makespan_s, rank_end_s[r]);
    }
  }

  /// Runs the lane until its next event waits for something.
  void advance(int l) {
    head& h = at(heads_, l);
    while (h.at != h.last) {
      const bool own = is_own_work(graph_->at(h.at).kind), mark = is_mark(graph_->at(h.at).kind);
      for (const int end = graph_->step(h.end).first_need; h.need < end; ++h.need) {
        const int which = at(graph_->needs, h.need);
        result& need = at(results, which / 2);
        const double came_s = need.at_s[which % 2];
        if (came_s < 0) {
          h.waiting = need.link[which % 2];
          need.link[which % 2] = l;
          return;
        }
        // What came over a wire after the last computation left the lane idle, at most since it set out.
        if (own && !mark && came_s > h.work_end_s) exposed_s += std::max(0.0, came_s - std::max(h.work_end_s, need.sent_s));
        if (came_s > h.come_s) {
          h.come_s = came_s;
          h.cause = need.link[which % 2];
        }
      }
      if (mark)
        pass(h);
      else if (own)
        work(l, h);
      else if (!meet(h))
        return;
      next(h);
    }
  }

  /// Marks, which take no time and are in no log.
  void pass(head& h) {
    h.end_s = h.come_s;
    h.end_cause = h.cause;
    for (int n = h.at; n < h.end; ++n) settle(n, 0, h.end_s, h.end_cause);
  }

  /// What a rank does by itself.
  void work(int l, head& h) {
    const lane& at_lane = graph_->lane_at(l);
    const double start = h.come_s;
    const double seconds = event_work_s(h.at, h.end);
    h.end_s = start + seconds;
    for (int n = h.at; n < h.end; ++n) {
      h.end_cause = record(graph_->at(n), at_lane.rank, -1, start, h.end_s, h.cause);
      settle(n, 0, h.end_s, h.end_cause);
      if (graph_->step(n).ships) ask(n, h.end_s, h.end_cause);
    }
    h.work_end_s = h.end_s;
    count_work(at_lane.rank, start, h.end_s);
    if (is_compute(graph_->at(h.at).kind) || graph_->at(h.at).kind == action_kind::optimizer)
      at(rank_busy_s, at_lane.rank) += seconds;
  }

  /// Begins transfers and reductions; returns whether all have ended.
  bool meet(head& h) {
    h.came = true;
    h.end_s = h.come_s;
    h.end_cause = h.cause;
    h.open = 1;  // so that nothing ends the event before all members have begun
    for (int n = h.at; n < h.end; ++n) {
      const action& a = graph_->at(n);
      const int partner = graph_->step(n).partner;
      if (a.kind == action_kind::reduce_gradients) {
        if (at(graph_->reductions, a.direction * costs_->stages + a.stage) == n) {
          ++h.open;
          reduce(a, h);
        } else {
          const int rank = graph_->lane_at(graph_->step(n).lane).rank;
          count_work(rank, h.come_s, h.come_s);
          record(a, rank, -1, h.come_s, h.come_s, h.cause);
        }
      } else if (partner < 0) {
        ++h.open;
        ask(n, h.come_s, h.cause);
      } else if (rendezvous_) {
        ++h.open;
        const head& other = at(heads_, graph_->step(partner).lane);
        const bool both = other.came && partner >= other.at && partner < other.end;
        if (both)
          ask(is_send(a.kind) ? n : partner, std::max(h.come_s, other.come_s), h.come_s < other.come_s ? other.cause : h.cause);
      } else if (is_send(a.kind)) {
        ++h.open;
        ask(n, h.come_s, h.cause);
      } else if (const result& sent = at(results, partner); sent.at_s[1] < 0) {
        ++h.open;
      } else {
        at(results, n).sent_s = sent.sent_s;
        extend(h, sent.at_s[1], sent.link[1]);
      }
    }
    return --h.open == 0;
  }

  /// The event at the head of the lane has ended.
  void next(head& h) {
    if (h.came) {
      for (int n = h.at; n < h.end; ++n)
        if (at(results, n).at_s[0] < 0) settle(n, 0, h.end_s, h.end_cause);
      h.came = false;
    }
    h.come_s = h.end_s;
    h.cause = h.end_cause;
    h.at = h.end;
    if (h.at < h.last) begin(h);
  }

  /// Puts the event that begins with action h.at at the head.
  void begin(head& h) const {
    h.end = graph_->event_end(h.at);
    h.need = graph_->step(h.at).first_need;
  }

  void extend(head& h, double end_s, int cause) {
    if (end_s > h.end_s) {
      h.end_s = end_s;
      h.end_cause = cause;
    }
  }

  /// A member of the event that action n belongs to has ended, if the event has begun.
  void end_member(int n, double end_s, int cause) {
    const int l = graph_->step(n).lane;
    head& h = at(heads_, l);
    extend(h, end_s, cause);
    if (--h.open > 0) return;
    next(h);
    ready_.push_back(l);
  }

  void reduce(const action& a, const head& h) {
    meeting& m = at(meetings_, a.stage);
    if (h.come_s > m.start_s || m.came == 0) {
      m.start_s = h.come_s;
      m.cause = h.cause;
    }
    ++m.came;
    int parts = 0;
    double seconds = 0;
    for (int c = 0; c < costs_->directions; ++c) {
      parts += at(graph_->reductions, c * costs_->stages + a.stage) >= 0;
      seconds = std::max(seconds, costs_->at(c, a.stage).reduce_gradients_s);
    }
    if (m.came < parts) return;
    for (int c = 0; c < costs_->directions; ++c) {
      const int n = at(graph_->reductions, c * costs_->stages + a.stage);
      if (n < 0) continue;
      const int rank = graph_->lane_at(graph_->step(n).lane).rank;
      count_work(rank, m.start_s, m.start_s + seconds);
      end_member(n, m.start_s + seconds, record(graph_->at(n), rank, -1, m.start_s, m.start_s + seconds, m.cause));
    }
  }

  void ask(int n, double time_s, int cause, int leg = 0) {
    requests_.push_back({time_s, graph_->step(n).origin, leg, n, cause});
    std::push_heap(requests_.begin(), requests_.end(), is_later{});
  }

  /// Of what a computation makes or a transfer moves.
  [[nodiscard]] way way_of(const action& a) const {
    const bool gradient = traits_of(a.kind).payload == action_payload::gradient;
    const bool arriving = is_h2d(a.kind);  // listed by the receiver
    const int from = arriving ? peer_stage(a) : a.stage, to = arriving ? a.stage : next_stage(a);
    return {graph_->order->rank(a.direction, from), graph_->order->rank(a.direction, to), to,
            gradient ? &costs_->gradient(a.direction, to) : &costs_->activation(a.direction, from)};
  }

  void serve(const request& r) {
    constexpr transfer_leg staged[] = {transfer_leg::d2h, transfer_leg::network, transfer_leg::h2d};
    const action& a = graph_->at(r.action);
    const way w = way_of(a);
    const bool whole = is_compute(a.kind) || is_send(a.kind);  // a transfer with all its legs, not one that is listed by itself

    const auto traits = traits_of(a.kind);
    const transfer_leg part = !whole ? traits.leg : w.over->staged ? staged[r.leg] : transfer_leg::send;
    const bool d2h = part == transfer_leg::d2h, h2d = part == transfer_leg::h2d;
    const hop& leg = d2h ? w.over->d2h : h2d ? w.over->h2d : w.over->network;

    double start = r.time_s;
    int cause = r.cause;
    for (const int wire : leg.wires)
      if (wire >= 0)
        if (const port& p = find_port(wire, r.time_s); p.free_s > start) {
          start = p.free_s;
          cause = p.cause;
        }
    const double end = start + leg.occupied_s, arrival = end + leg.latency_s;
    action what = a;
    what.kind = transfer_kind(traits.payload, part);
    what.joined = false;
    if (h2d) what.stage = w.stage;
    const int logged = record(what, w.from, w.to, start, arrival, cause);
    for (const int wire : leg.wires)
      if (wire >= 0) {
        find_port(wire, r.time_s) = {end, logged};
        at(wire_busy_s, wire) += leg.occupied_s;
      }

    result& result_of = at(results, r.action);
    if (whole) {
      if (r.leg == 0) result_of.sent_s = start;
      if (!rendezvous_ && r.leg == 0 && !is_compute(a.kind)) end_member(r.action, r.time_s, r.cause);
      if (w.over->staged && !h2d) return ask(r.action, arrival, logged, r.leg + 1);
      transfer_s += arrival - result_of.sent_s;
      if (is_compute(a.kind)) return settle(r.action, 1, arrival, logged);
      arrive(r.action, arrival, logged);
    } else {
      const int before = at(graph_->needs, graph_->step(r.action).first_need) / 2;
      result_of.sent_s = std::min(start, at(results, before).sent_s);
      if (h2d) transfer_s += arrival - result_of.sent_s;
      settle(r.action, 0, arrival, logged);
      settle(r.action, 1, arrival, logged);
      end_member(r.action, end, logged);
    }
  }

  /// What a listed send moves has arrived.
  void arrive(int send, double arrival_s, int cause) {
    settle(send, 1, arrival_s, cause);
    const int receive = graph_->step(send).partner;
    at(results, receive).sent_s = at(results, send).sent_s;
    const head& h = at(heads_, graph_->step(receive).lane);
    if (rendezvous_) end_member(send, arrival_s, cause);
    if (h.came && receive >= h.at && receive < h.end) end_member(receive, arrival_s, cause);
  }

  void settle(int n, int where, double at_s, int cause) {
    result& r = at(results, n);
    r.at_s[where] = at_s;
    for (int l = r.link[where]; l >= 0; l = at(heads_, l).waiting) ready_.push_back(l);
    r.link[where] = cause;
  }

  /// Of the wire's ports, one that is free at a time that no later request precedes, or the one that gets free first.
  port& find_port(int wire, double time_s) {
    auto& ports = at(ports_, wire);
    port* first = nullptr;
    for (auto& p : ports) {
      if (p.free_s <= time_s) return p;
      if (first == nullptr || p.free_s < first->free_s) first = &p;
    }
    if (ports.size() == as_size(at(costs_->wires, wire).capacity)) return *first;
    return ports.emplace_back();
  }

  void count_work(int rank, double start_s, double end_s) {
    at(rank_start_s, rank) = std::min(at(rank_start_s, rank), start_s);
    at(rank_end_s, rank) = std::max(at(rank_end_s, rank), end_s);
  }

  /// Gives every rank its part of the log, for its work and for what it sends.
  void make_log() {
    const auto ranks = as_size(graph_->order->ranks);
    log_next_.assign(2 * ranks + 1, 0);
    for (const auto& step : graph_->steps) {
      if (&step == &graph_->steps.back()) break;
      const action& a = step.what;
      const std::size_t part = 2 * as_size(graph_->lane_at(step.lane).rank) + 1;  // counts are kept one place behind
      if (!is_transfer(a.kind) && !is_mark(a.kind)) ++log_next_[part];
      if (step.ships || is_send(a.kind))
        log_next_[part + 1] += way_of(a).over->staged ? 3u : 1u;
      else if (is_staged(a.kind))
        ++log_next_[2 * as_size(way_of(a).from) + 2];
    }
    for (std::size_t k = 1; k < log_next_.size(); ++k) log_next_[k] += log_next_[k - 1];
    log.resize(log_next_.back());
    causes.resize(log.size());
  }

  int record(const action& a, int rank, int peer, double start_s, double end_s, int cause) {
    if (log_next_.empty()) return -1;
    const std::size_t k = log_next_[2 * as_size(rank) + is_transfer(a.kind)]++;
    log[k] = {a, rank, peer, start_s, end_s};
    causes[k] = cause;
    return static_cast<int>(k);
  }

  const event_graph* graph_;
  const workload* costs_;
  bool rendezvous_;
  std::vector<head> heads_;
  std::vector<int> ready_;                // lanes that may go on
  std::vector<request> requests_;         // a heap
  std::vector<std::vector<port>> ports_;  // by wire: one for each transfer that it has carried at a time so far
  std::vector<meeting> meetings_;
  std::vector<std::size_t> log_next_;  // per rank: where its work and its transfers are logged next; empty: nowhere
};

}  // namespace hetsched::detail
