// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/detail/issue_plan.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/check/issue_order.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

/// Goes through a rank's program as it goes where all computations that can be done are done before the next communication is
/// issued. With the most tensors that are then in buffers at once, and waiting to leave, the rank cannot get stuck for want of
/// room in whatever way it goes: what comes next on this way can always be done.
/// Throws: input_error where the lanes of the schedule list communication in an order that the issue order does not allow.
/// Complexity: O(ops * lanes).
class issue_rehearsal {
 public:
  /// `arrivals`: what comes to this rank by way of the host.
  issue_rehearsal(rank_program& program, std::span<const host_arrival> arrivals, send_semantics semantics)
      : program_(program),
        arrivals_(arrivals),
        early_(semantics == send_semantics::buffered),
        issued_(program.ops.size(), 0),
        begun_(program.ops.size(), 0),
        done_(program.ops.size(), 0),
        come_(program.edges.size(), 0),
        taken_(come_),
        made_(come_),
        left_(come_) {
    for (const auto& l : program_.lanes) front_.push_back(l.first);
    for (const auto& group : program_.issued)
      for (const auto k : group) issued_[k] = 1;
    for (std::size_t k = 0; k < program.ops.size(); ++k)
      if (is_h2d(program.ops[k].what.kind)) copies_.push_back(k);
  }

  /// Returns: what is issued, with each other event, by its first op, where it can be done first. That is a place in
  /// one order of all ranks, if what is issued is: it is behind all that this rank needs for it, and before all that needs it.
  [[nodiscard]] std::vector<std::vector<std::size_t>> run() {
    std::size_t issued = 0;
    for (const auto& group : program_.issued) {
      arrive(issued + group.size() - 1);  // a group begins when all of it can
      compute();
      all_.push_back(group);
      issued += group.size();
      for (const auto k : group) {
        const auto& op = program_.ops[k];
        const bool posted = begun_[k] || (early_ && is_receive(op.what.kind));
        if (!posted) throw input_error("the schedule cannot run: " + to_text(op.what) + " comes too late in its lane");
        if (is_receive(op.what.kind)) {
          come(op);
        } else if (is_send(op.what.kind)) {
          ++at(left_, op.out);
        }
        done_[k] = 1;
      }
    }
    arrive(issued);
    compute();
    for (std::size_t l = 0; l < front_.size(); ++l)
      if (front_[l] < program_.lanes[l].second)
        throw input_error("the schedule cannot run: " + to_text(program_.ops[front_[l]].what) + " waits for ever");
    return std::move(all_);
  }

 private:
  void come(const rank_op& op) {
    auto& e = at(program_.edges, op.in);
    e.buffers = std::max(e.buffers, ++at(come_, op.in) - at(taken_, op.in));
  }
  /// What has come by way of the host behind so many actions that were issued.
  void arrive(std::size_t issued) {
    for (; !arrivals_.empty() && arrivals_.front().behind <= issued; arrivals_ = arrivals_.subspan(1)) {
      compute();  // where computations are done at once there is room for it
      const auto& what = arrivals_.front().what;
      const auto found = std::find_if(copies_.begin(), copies_.end(), [&](std::size_t k) {
        const auto& a = program_.ops[k].what;
        return a.kind == what.kind && a.direction == what.direction && a.stage == what.stage && a.microbatch == what.microbatch;
      });
      come(program_.ops[*found]);
      done_[*found] = 1;
      copies_.erase(found);
    }
  }
  void compute() {
    for (bool moved = true; std::exchange(moved, false);)
      for (std::size_t l = 0; l < front_.size(); ++l)
        while (front_[l] < program_.lanes[l].second && advance(l)) moved = true;
  }
  bool advance(std::size_t l) {
    const std::size_t first = front_[l], last = program_.ops[first].event_end;
    const auto is_done = [&](std::size_t n) { return done_[n] != 0; };
    if (!begun_[first]) {
      for (std::size_t i = program_.ops[first].needs; i < program_.ops[last].needs; ++i)
        if (!is_done(program_.needs[i])) return false;
      if (l + 1 < front_.size()) all_.push_back({first});
      for (std::size_t k = first; k < last; ++k) begin(k);
    }
    for (std::size_t k = first; k < last; ++k)
      if (!is_done(k)) return false;
    front_[l] = last;
    return true;
  }
  void begin(std::size_t k) {
    const auto& op = program_.ops[k];
    begun_[k] = 1;
    if ((!issued_[k] && !is_h2d(op.what.kind)) || (early_ && is_send(op.what.kind))) done_[k] = 1;
    if (!is_compute(op.what.kind)) return;
    if (op.in >= 0) ++at(taken_, op.in);
    if (op.out < 0) return;
    auto& e = at(program_.edges, op.out);
    ++at(made_, op.out);
    if (e.where.to != e.where.from && e.staged == 0) e.leaving = std::max(e.leaving, at(made_, op.out) - at(left_, op.out));
  }

  rank_program& program_;
  std::span<const host_arrival> arrivals_;  ///< that are still to come
  std::vector<std::size_t> copies_;         ///< their ops
  bool early_;
  std::vector<char> issued_, begun_, done_;      ///< per op; issued: at any time
  std::vector<int> come_, taken_, made_, left_;  ///< per edge: tensors
  std::vector<std::size_t> front_;               ///< per lane
  std::vector<std::vector<std::size_t>> all_;
};

HETSCHED_INLINE rank_program compile_in_issue_order(const schedule& order, int rank, send_semantics semantics, const issuing& how,
                                                    stage_shapes shapes) {
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (is_staged(a.kind) && !how.mixed)
        throw input_error("the schedule cannot run: " + to_text(a) +
                          " goes by way of the host, and this communicator takes tensors from devices only");
  auto found = find_issue_order(order);
  if (!found.cycles.empty())
    throw input_error("there is no order in which all ranks can issue their communication: " + found.cycles.front());
  const indexed_schedule issued(with_issue_lanes(order, group_relays(order, group_exchanges(order, std::move(found.order)))));
  auto program = compile_rank(issued, rank, semantics, std::move(shapes));
  const auto [first, last] = program.lanes.back();
  for (std::size_t k = first; k < last; ++k) {
    if (!program.ops[k].what.joined) program.issued.emplace_back();
    program.issued.back().push_back(k);
  }
  auto all = issue_rehearsal(program, at(found.arrivals, rank), semantics).run();
  std::erase_if(all, [&](const auto& group) {
    const auto& op = program.ops[group.front()];
    const auto event = std::span(program.ops).subspan(group.front(), op.event_end - group.front());
    const auto copies_out = [](const rank_op& o) { return is_d2h(o.what.kind); };
    return is_turn(program, group) && !(how.calls && is_compute(op.what.kind)) &&
           (!how.has_turns || std::none_of(event.begin(), event.end(), copies_out));
  });
  program.issued = std::move(all);
  return program;
}

HETSCHED_INLINE turns::turns(const rank_program& program) {
  for (const auto& group : program.issued)
    if (is_turn(program, group)) all_.push_back(group.front());
  waits_.assign(all_.empty() ? 0 : program.ops.size(), 0);
  for (const auto first : all_) waits_[first] = 1;
}

}  // namespace hetsched::detail
