// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_communicator_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/rank_program.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/check/issue_order.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/transfer_ends.hpp>

// For an ordered_plane: in which order a rank issues its communication, and the buffers that this takes.
namespace hetsched::detail {

/// Goes through a rank's program as it goes where all computations that can be done are done before the next communication is
/// issued. With the most tensors that are then in buffers at once, and waiting to leave, the rank cannot get stuck for want of
/// room in whatever way it goes: what comes next on this way can always be done.
/// Throws: input_error where the lanes of the schedule list communication in an order that the issue order does not allow.
/// Complexity: O(ops * lanes).
class issue_rehearsal {
 public:
  issue_rehearsal(rank_program& program, send_semantics semantics)
      : program_(program),
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
  }

  /// Returns: what is issued, with each event of computations, by its first op, where it can be done first. That is a place in
  /// one order of all ranks, if what is issued is: it is behind all that this rank needs for it, and before all that needs it.
  [[nodiscard]] std::vector<std::vector<std::size_t>> run() {
    for (const auto& group : program_.issued) {
      compute();
      all_.push_back(group);
      for (const auto k : group) {
        const auto& op = program_.ops[k];
        const bool posted = begun_[k] || (early_ && is_receive(op.what.kind));
        if (!posted) throw input_error("the schedule cannot run: " + to_text(op.what) + " comes too late in its lane");
        if (is_receive(op.what.kind)) {
          auto& e = program_.edges[at(op.in)];
          e.buffers = std::max(e.buffers, ++come_[at(op.in)] - taken_[at(op.in)]);
        } else if (is_send(op.what.kind)) {
          ++left_[at(op.out)];
        }
        done_[k] = 1;
      }
    }
    compute();
    for (std::size_t l = 0; l < front_.size(); ++l)
      if (front_[l] < program_.lanes[l].second)
        throw input_error("the schedule cannot run: " + to_text(program_.ops[front_[l]].what) + " waits for ever");
    return std::move(all_);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

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
      if (is_compute(program_.ops[first].what.kind)) all_.push_back({first});
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
    if (!issued_[k] || (early_ && is_send(op.what.kind))) done_[k] = 1;
    if (!is_compute(op.what.kind)) return;
    if (op.in >= 0) ++taken_[at(op.in)];
    if (op.out < 0) return;
    auto& e = program_.edges[at(op.out)];
    ++made_[at(op.out)];
    if (e.where.to != e.where.from) e.leaving = std::max(e.leaving, made_[at(op.out)] - left_[at(op.out)]);
  }

  rank_program& program_;
  bool early_;
  std::vector<char> issued_, begun_, done_;      ///< per op; issued: at any time
  std::vector<int> come_, taken_, made_, left_;  ///< per edge: tensors
  std::vector<std::size_t> front_;               ///< per lane
  std::vector<std::vector<std::size_t>> all_;
};

/// The schedule whose ranks issue their communication in one lane each, the last of the rank, in an order that is proved.
/// Requires: order comes from runnable().
/// Throws: input_error where there is none, with what waits for what, and for copies by way of the host.
/// Complexity: that of find_issue_order and group_exchanges.
[[nodiscard]] inline schedule in_issue_order(const schedule& order) {
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (is_staged(a.kind))
        throw input_error("the schedule cannot run: " + to_text(a) +
                          " goes by way of the host, and this communicator takes tensors from devices only");
  auto found = find_issue_order(order);
  if (!found.cycles.empty())
    throw input_error("there is no order in which all ranks can issue their communication: " + found.cycles.front());
  return with_issue_lanes(order, group_exchanges(order, std::move(found.order)));
}

/// Lists what a rank issues, and gives it the buffers for that.
/// `program`: compiled from in_issue_order(). `calls`: whether layers call collectives.
inline void add_issue_order(rank_program& program, send_semantics semantics, bool calls) {
  const auto [first, last] = program.lanes.back();
  for (std::size_t k = first; k < last; ++k) {
    if (!program.ops[k].what.joined) program.issued.emplace_back();
    program.issued.back().push_back(k);
  }
  auto all = issue_rehearsal(program, semantics).run();
  if (calls) program.issued = std::move(all);
}

/// See calling_plane; over other communicators layers may call at any time.
template <class Communicator>
[[nodiscard]] bool may_call([[maybe_unused]] Communicator& comm) {
  if constexpr (calling_plane<Communicator>) return comm.may_call();
  return true;
}
template <class Communicator>
void end_calls([[maybe_unused]] Communicator& comm) {
  if constexpr (calling_plane<Communicator>) comm.end_calls();
}

/// What a rank sends and receives in its issue order: of a group, and of the slices of a tensor, what is in one phase; and an
/// empty group for each event of computations that is in the order.
/// `exchange_of(copy)`: the number of its exchange with the other direction, -1 if there is none.
template <class Edges, class Exchanges, class ExchangeOf>
[[nodiscard]] communication_plan plan_of(const rank_program& program, const Edges& edges, const Exchanges& exchanges,
                                         const ExchangeOf& exchange_of, std::int64_t step) {
  communication_plan all;
  for (const auto& group : program.issued) {
    if (is_compute(program.ops[group.front()].what.kind)) {
      all.emplace_back();
      continue;
    }
    communication_plan phases(1);
    for (const auto k : group) {
      const auto& op = program.ops[k];
      const int e = op.in >= 0 ? op.in : op.out, exchange = is_transfer(op.what.kind) ? -1 : exchange_of(op.copy);
      if (is_transfer(op.what.kind))
        edges.plan(e, edges.stamp_of(e, op.what.microbatch, step), phases);
      else if (exchange >= 0)
        exchanges[static_cast<std::size_t>(exchange)].plan(step, phases[0]);
    }
    std::erase_if(phases, [](const auto& p) { return p.empty(); });
    std::move(phases.begin(), phases.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace hetsched::detail
