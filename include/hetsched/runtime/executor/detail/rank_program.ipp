// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/posting.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<int> stage_ends(const rank_program& p) {
  std::vector<std::size_t> last(p.copies.size(), p.ops.size());
  for (std::size_t k = p.lanes[0].first; k < p.lanes[0].second; ++k)
    if (const auto& op = p.ops[k];
        is_compute(op.what.kind) && op.what.kind != action_kind::forward && op.what.kind != action_kind::recompute)
      at(last, op.copy) = k;
  std::vector<int> ends(p.ops.size(), -1);
  for (std::size_t i = 0; i < last.size(); ++i)
    if (last[i] < ends.size()) ends[last[i]] = static_cast<int>(i);
  return ends;
}

class rank_compiler {
 public:
  rank_compiler(const indexed_schedule& indexed, int rank, send_semantics semantics, stage_shapes shapes)
      : indexed_(indexed),
        order_(indexed.order()),
        rank_(rank),
        semantics_(semantics),
        forward_only_(indexed.forward_only()),
        shapes_(std::move(shapes)) {}

  [[nodiscard]] rank_program compile() {
    program_.copies = stages_of_rank(order_, rank_);
    make_edges();
    make_ops();
    keep_tensors();
    count_buffers();
    count_leaving();
    return std::move(program_);
  }

 private:
  [[nodiscard]] std::size_t edge_key(bool gradient, int direction, int stage) const {
    return as_size(((gradient ? order_.directions : 0) + direction) * order_.stages + stage);
  }

  void make_edges() {
    edge_of_.assign(2 * order_.rank_of.size(), -1);
    for (int c = 0; c < order_.directions; ++c)
      for (int s = 0; s < order_.stages; ++s)
        for (const bool gradient : {false, true}) {
          const int to = s + (gradient ? -1 : 1);
          if (to < 0 || to == order_.stages || (gradient && forward_only_)) continue;
          const edge e{order_.rank(c, s), order_.rank(c, to), gradient ? payload::gradient : payload::activation, c, s};
          if (e.from != rank_ && e.to != rank_) continue;
          edge_of_[edge_key(gradient, c, s)] = static_cast<int>(program_.edges.size());
          program_.edges.push_back({.where = e, .microbatches = {}, .place = std::vector<int>(as_size(order_.microbatches), -1)});
        }
    std::vector<int> senders;
    for (const auto& e : program_.edges) senders.push_back(e.where.from);
    std::sort(senders.begin(), senders.end());
    senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
    for (const int sender : senders)
      for (const auto lane : indexed_.lanes_of(sender))
        for (const auto& a : order_.lanes[lane].actions) list_sent(sender, a);
  }
  void list_sent(int sender, const action& a) {
    const bool send = is_send(a.kind) || is_network(a.kind);
    if (!send && !makes_tensor(a.kind)) return;
    const bool gradient = traits_of(a.kind).payload == action_payload::gradient;
    const int to = next_stage(a);
    if (to < 0 || to == order_.stages) return;
    if (!send && order_.rank(a.direction, to) != sender) return;  // listed by its send
    const int e = edge_of_[edge_key(gradient, a.direction, a.stage)];
    if (e < 0) return;
    auto& crossed = at(program_.edges, e);
    at(crossed.place, a.microbatch) = static_cast<int>(crossed.microbatches.size());
    crossed.microbatches.push_back(a.microbatch);
  }

  void make_ops() {
    const action_index& index = indexed_.index();
    const auto lanes = indexed_.lanes_of(rank_);
    // Of this rank's actions, which are ops in the order of their lanes.
    const auto op_of = [&](int n) {
      std::size_t before = 0;
      for (const auto l : lanes) {
        if (n >= index.lane_first[l] && n < index.lane_first[l + 1]) return static_cast<int>(before) + n - index.lane_first[l];
        before += order_.lanes[l].actions.size();
      }
      return -1;
    };
    const auto action_of = [&](int n) {
      const auto l =
          as_size(std::upper_bound(index.lane_first.begin(), index.lane_first.end(), n) - index.lane_first.begin()) - 1;
      return at(order_.lanes[l].actions, n - index.lane_first[l]);
    };
    for (const auto lane : lanes) {
      const auto& l = order_.lanes[lane];
      const std::size_t first = program_.ops.size();
      for (const auto& a : l.actions) {
        rank_op op{.what = a};
        op.copy = static_cast<int>(std::find(program_.copies.begin(), program_.copies.end(), stage_copy{a.direction, a.stage}) -
                                   program_.copies.begin());
        set_edges(op);
        op.needs = program_.needs.size();
        const auto need = [&](int n) {
          if (const int k = op_of(n); k >= 0) program_.needs.push_back(as_size(k));
        };
        if (!is_parameter(a.kind) || a.kind == action_kind::reduce_gradients) for_each_need(order_, index, a, need);
        if (a.kind == action_kind::reduce_gradients && order_.directions == 2 && order_.rank(1 - a.direction, a.stage) == rank_) {
          action other = a;  // both copies here: the first reduction does it for both
          other.direction = static_cast<std::int16_t>(1 - a.direction);
          for_each_need(order_, index, other, [&](int n) {
            if (n >= 0 && is_compute(action_of(n).kind)) need(n);
          });
        }
        program_.ops.push_back(op);
      }
      const std::size_t last = program_.ops.size();
      for (std::size_t k = last, end = last; k-- > first;) {
        program_.ops[k].event_end = end;
        if (!program_.ops[k].what.joined) end = k;
      }
      program_.lanes.emplace_back(first, last);
    }
    program_.ops.emplace_back().needs = program_.needs.size();
  }

  void set_edges(rank_op& op) {
    using enum action_kind;
    const auto& a = op.what;
    const int c = a.direction, s = a.stage;
    const bool has_next = s + 1 < order_.stages;
    if (a.kind == forward || a.kind == recompute) {
      if (a.kind == forward && s > 0) op.in = edge_of_[edge_key(false, c, s - 1)];
      if (a.kind == forward && has_next) op.out = edge_of_[edge_key(false, c, s)];
    } else if (makes_gradient(a.kind)) {
      if (has_next) op.in = edge_of_[edge_key(true, c, s + 1)];
      if (s > 0) op.out = edge_of_[edge_key(true, c, s)];
    } else if (is_transfer(a.kind)) {
      const bool gradient = moves_gradient(a.kind);
      if (is_outgoing(a.kind))
        op.out = edge_of_[edge_key(gradient, c, s)];
      else
        op.in = edge_of_[edge_key(gradient, c, peer_stage(a))];
      const int e = op.in >= 0 ? op.in : op.out;
      if (e >= 0 && (is_d2h(a.kind) || is_h2d(a.kind))) ++at(program_.edges, e).staged;
    }
  }

  /// Places of one kind, handed out in the order of the compute lane. They are given back at the end of an event, as what is
  /// fused has all its memory at once.
  struct places {
    std::vector<int> all;  ///< what each is for
    std::vector<int> free;
    int take(int purpose) {
      for (std::size_t i = free.size(); i-- > 0;)
        if (at(all, free[i]) == purpose) {
          const int found = free[i];
          free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
          return found;
        }
      all.push_back(purpose);
      return static_cast<int>(all.size()) - 1;
    }
  };

  /// Decides where every computation finds its microbatch's context, input and output gradient. An input is kept from the
  /// forward to the last backward. So is a context, but from the recompute on if there is one. A gradient is kept from the
  /// backward on, that of the loss from the forward on. Where there are no backwards, a forward keeps nothing.
  void keep_tensors() {
    using enum action_kind;
    struct held {
      int context = -1, input = -1, gradient = -1;
      bool split = false, recomputed = false;
    };
    const auto batches = as_size(order_.microbatches);
    std::vector<held> cells(program_.copies.size() * batches);
    const auto cell = [&](const rank_op& op) -> held& { return cells[as_size(op.copy) * batches + as_size(op.what.microbatch)]; };
    const auto [first, last] = program_.lanes[0];
    for (std::size_t k = first; k < last; ++k) {
      const auto& op = program_.ops[k];
      if (op.what.kind == backward_weight) cell(op).split = true;
      if (op.what.kind == recompute) cell(op).recomputed = true;
    }
    std::vector<places> contexts(program_.copies.size());
    places inputs, gradients;
    std::vector<std::pair<places*, int>> given_back;
    for (std::size_t k = first; k < last; ++k) {
      auto& op = program_.ops[k];
      if (!op.what.joined) {
        for (const auto& [where, place] : given_back) where->free.push_back(place);
        given_back.clear();
      }
      if (!is_compute(op.what.kind)) continue;
      auto& own = cell(op);
      auto& context = at(contexts, op.copy);
      const int s = op.what.stage;
      const auto stage = as_size(op.what.direction * order_.stages + s);
      if (op.what.kind == forward || op.what.kind == recompute) own.context = context.take(0);
      if (op.what.kind == forward && s > 0) own.input = inputs.take(shapes_.input[stage]);
      if (s + 1 == order_.stages ? op.what.kind == forward && !forward_only_ : makes_gradient(op.what.kind))
        own.gradient = gradients.take(s + 1 == order_.stages ? -1 : shapes_.gradient[stage]);
      op.slot = own.context;
      op.input = own.input;
      op.gradient = own.gradient;
      const bool ends = op.what.kind == backward_weight || (op.what.kind == backward && !own.split) || forward_only_;
      if (ends || (op.what.kind == forward && own.recomputed)) given_back.emplace_back(&context, own.context);
      if (ends && own.input >= 0) given_back.emplace_back(&inputs, own.input);
      if (ends && own.gradient >= 0) given_back.emplace_back(&gradients, own.gradient);
    }
    for (const auto& c : contexts) program_.slots.push_back(static_cast<int>(c.all.size()));
    program_.inputs = std::move(inputs.all);
    program_.gradients = std::move(gradients.all);
  }

  /// Counts the buffers of every edge. Before a computation has its tensor, the lane that lists its receive must have come
  /// there, and all tensors sent before must have been received. The most that are then there and not used up, over all
  /// events, is how many buffers the edge needs. Under rendezvous a receive must not wait for a buffer, as a computation may
  /// wait for it.
  void count_buffers() {
    std::vector<int> needed(program_.edges.size(), 0), used(program_.edges.size(), 0);
    std::vector<std::size_t> lane_of(program_.ops.size(), 0), reached;
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
      reached.push_back(program_.lanes[l].first);
      for (std::size_t k = program_.lanes[l].first; k < program_.lanes[l].second; ++k) lane_of[k] = l;
    }
    const auto reach = [&](std::size_t op) {  // its lane has got so far
      for (auto& k = reached[lane_of[op]]; k <= op; ++k) {
        const auto& o = program_.ops[k];
        if (o.in < 0 || !is_transfer(o.what.kind)) continue;
        const auto e = as_size(o.in);
        needed[e] = std::max(needed[e], at(program_.edges[e].place, o.what.microbatch) + 1);
        program_.edges[e].buffers = std::max(program_.edges[e].buffers, needed[e] - used[e]);
      }
    };
    for (std::size_t first = program_.lanes[0].first, last = first; first < program_.lanes[0].second; first = last) {
      last = program_.ops[first].event_end;
      for (std::size_t i = program_.ops[first].needs; i < program_.ops[last].needs; ++i)
        if (is_transfer(program_.ops[program_.needs[i]].what.kind)) reach(program_.needs[i]);
      reach(last - 1);
      for (std::size_t k = first; k < last; ++k)  // an event begins when all that it needs is there
        if (is_compute(program_.ops[k].what.kind) && program_.ops[k].in >= 0) ++at(used, program_.ops[k].in);
    }
    for (auto& e : program_.edges) {
      const int all = static_cast<int>(e.microbatches.size());
      if (e.where.to != rank_ || e.where.from == rank_)
        e.buffers = 0;
      else
        e.buffers = semantics_ == send_semantics::rendezvous ? all : std::min(std::max(e.buffers, 2), all);
    }
  }

  /// The most microbatches of a stage between a forward and its input gradient, whose activation may not have left or whose
  /// gradient from the next stage may not have come. Without gradients nothing else holds a stage up: in a line two are enough,
  /// as all ranks take microbatches in one order; ranks with several stages may send all before the first is taken.
  [[nodiscard]] int most_in_flight(int direction, int stage) const {
    using enum action_kind;
    if (forward_only_)
      return std::min(order_.stages == order_.ranks && order_.directions == 1 ? 2 : order_.microbatches, order_.microbatches);
    int now = 0, most = 0, ended = 0;
    for (const auto& a : at(order_.lanes, order_.rank(direction, stage)).actions) {
      if (!a.joined) now -= std::exchange(ended, 0);
      if (a.direction != direction || a.stage != stage) continue;
      if (a.kind == forward) most = std::max(most, ++now);
      if (makes_gradient(a.kind)) ++ended;
    }
    return most;
  }

  /// Counts the tensors that can be leaving over an edge. One that is not received holds up the backward of its microbatch,
  /// so there are no more than are in flight at that end of the boundary which comes first. Within a rank, there are no more
  /// than its order makes before it takes them.
  void count_leaving() {
    std::vector<int> now(program_.edges.size(), 0), taken;
    for (auto& e : program_.edges)
      if (e.where.from == rank_ && e.where.to != rank_)
        e.leaving = most_in_flight(e.where.direction, e.where.stage - (e.where.what == payload::gradient ? 1 : 0));
    for (std::size_t k = program_.lanes[0].first; k < program_.lanes[0].second; ++k) {
      const auto& op = program_.ops[k];
      if (!op.what.joined) {
        for (const int e : taken) --at(now, e);
        taken.clear();
      }
      if (!is_compute(op.what.kind)) continue;
      if (op.in >= 0) taken.push_back(op.in);
      if (op.out < 0) continue;
      auto& e = at(program_.edges, op.out);
      ++at(now, op.out);
      if (e.where.to == rank_) e.leaving = std::max(e.leaving, at(now, op.out));
    }
  }

  const indexed_schedule& indexed_;
  const schedule& order_;
  int rank_;
  send_semantics semantics_;
  bool forward_only_;
  rank_program program_;
  stage_shapes shapes_;
  std::vector<int> edge_of_;  ///< by edge_key
};

HETSCHED_INLINE rank_program compile_rank(const indexed_schedule& order, int rank, send_semantics semantics,
                                          stage_shapes shapes) {
  return rank_compiler(order, rank, semantics, std::move(shapes)).compile();
}

}  // namespace hetsched::detail
