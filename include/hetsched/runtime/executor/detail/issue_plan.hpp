// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_communicator_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/send_semantics.hpp>

// For an ordered_plane: in which order a rank issues its communication, and the buffers that this takes.
namespace hetsched::detail {

/// Whether a group of rank_program::issued is an event that other lanes begin at this place in the order.
[[nodiscard]] inline bool is_turn(const rank_program& program, const std::vector<std::size_t>& group) {
  return group.front() < program.lanes.back().first;
}

/// Of the communicator that a program is issued over.
struct issuing {
  bool mixed = false;      ///< it has planes of hosts, too
  bool calls = false;      ///< layers call collectives
  bool has_turns = false;  ///< it is a calling_plane
};
/// The program of a rank that issues its communication in one lane, the last, in an order that is proved; copies by way of the
/// host stay in theirs. It lists what the rank issues, with the buffers for that. Copies to the host have their turns in it:
/// where a device works in the order of the calls, one behind a receive would wait for what may need this copy. Requires: order
/// comes from runnable(). Throws: input_error where there is no such order, with what waits for what; where lanes of the schedule
/// list communication in another; and for copies by way of the host unless mixed. Complexity: that of find_issue_order and
/// group_exchanges, and O(ops * lanes).
[[nodiscard]] rank_program compile_in_issue_order(const schedule& order, int rank, send_semantics semantics, const issuing& how,
                                                  stage_shapes shapes);

/// What a rank of a schedule does over a communicator: in an issue order where that is an ordered_plane.
/// Throws: as compile_in_issue_order.
template <class Communicator>
[[nodiscard]] rank_program program_for(const indexed_schedule& order, int rank, send_semantics semantics,
                                       [[maybe_unused]] bool calls, stage_shapes shapes) {
  if constexpr (ordered_plane<Communicator>) {
    const issuing how{.mixed = partly_ordered<Communicator>, .calls = calls, .has_turns = calling_plane<Communicator>};
    return compile_in_issue_order(order.order(), rank, semantics, how, std::move(shapes));
  } else {
    return compile_rank(order, rank, semantics, std::move(shapes));
  }
}

/// The turns of a step in their order. Only over a calling_plane are there any.
class turns {
 public:
  explicit turns(const rank_program& program);
  void begin_step() { next_ = 0; }
  /// Whether an event may begin, by its first op; then, that the plan may go on.
  template <class Communicator>
  [[nodiscard]] bool may_begin([[maybe_unused]] Communicator& comm, [[maybe_unused]] std::size_t first) const {
    if constexpr (calling_plane<Communicator>)
      if (!all_.empty() && waits_[first]) return next_ < all_.size() && all_[next_] == first && comm.may_call();
    return true;
  }
  template <class Communicator>
  void end([[maybe_unused]] Communicator& comm, [[maybe_unused]] std::size_t first) {
    if constexpr (calling_plane<Communicator>)
      if (!all_.empty() && waits_[first]) {
        ++next_;
        comm.end_calls();
      }
  }

 private:
  std::vector<std::size_t> all_;  ///< first ops
  std::vector<char> waits_;       ///< per op
  std::size_t next_ = 0;
};

/// Whether a rank's host may wait for its device. Beside an ordered_plane not while a network action waits for its copy to the
/// host alone, or chunks that have been copied are not on the network: what the device is at may need them. A network action
/// behind one whose copy has not begun is not needed yet, as that copy has its turn before.
/// `front`: the first ops of the events that lanes have come to. `begun`: per op, of the first of an event.
template <class Communicator, class Edges>
[[nodiscard]] bool may_wait([[maybe_unused]] const rank_program& program, [[maybe_unused]] std::span<const std::size_t> front,
                            [[maybe_unused]] std::span<const char> begun, [[maybe_unused]] const Edges& edges) {
  if constexpr (partly_ordered<Communicator>) {
    for (std::size_t l = 0; l < front.size(); ++l) {
      if (front[l] == program.lanes[l].second || begun[front[l]]) continue;
      for (std::size_t k = front[l]; k < program.ops[front[l]].event_end; ++k)
        if (const auto& op = program.ops[k];
            is_network(op.what.kind) && edges.is_copied_out(op.out, edges.place(op.out, op.what.microbatch)))
          return false;
    }
    return !edges.sends_chunks();
  } else {
    return true;
  }
}

/// What a rank sends and receives in its issue order: of a group, and of the slices of a tensor, what is in one phase; and an
/// empty group for each turn.
/// `exchange_of(copy)`: the number of its exchange with the other direction, -1 if there is none.
template <class Edges, class Exchanges, class ExchangeOf>
[[nodiscard]] communication_plan plan_of(const rank_program& program, const Edges& edges, const Exchanges& exchanges,
                                         const ExchangeOf& exchange_of, std::int64_t step) {
  communication_plan all;
  for (const auto& group : program.issued) {
    if (is_turn(program, group)) {
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
        at(exchanges, exchange).plan(step, phases[0]);
    }
    std::erase_if(phases, [](const auto& p) { return p.empty(); });
    std::move(phases.begin(), phases.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/issue_plan.ipp>
#endif
