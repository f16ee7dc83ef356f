// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched {

namespace detail {

/// Whether a computation's result crosses to another rank, and its send if so.
[[nodiscard]] bool sends(const schedule& order, const action& a, action& send);

}  // namespace detail

/// Lists communication: a send behind every computation whose result goes to another rank, and its receive on that rank,
/// behind what that rank has done when the result is there, with forwards of one unit of time, and backwards of two (halves of
/// one each). Both ends of every transfer thus follow one order of events, so the result is free of deadlock under rendezvous.
/// Throws: input_error for a schedule that lists transfers or lanes other than compute, or that cannot run.
/// Complexity: O(actions * ranks) at worst; O(actions) where ranks are rarely idle.
[[nodiscard]] schedule add_transfers(const schedule& order);

/// Puts communication on the way through host memory: where crosses(from rank, to rank), a send becomes a copy to the host and
/// a network transfer, and its receive a copy to the device.
/// Throws: input_error where such a transfer is in a group, or not in a compute lane: stage transfers before grouping them and
/// splitting streams; and for sizes, a stage map, lanes or single actions that do not make a schedule.
/// Complexity: O(actions).
template <class Crosses>
[[nodiscard]] schedule stage_transfers(const schedule& order, Crosses crosses) {
  detail::validate_actions(order);
  schedule result = order;
  for (std::size_t l = 0; l < order.lanes.size(); ++l) {
    auto& out = result.lanes[l].actions;
    const auto& actions = order.lanes[l].actions;
    out.clear();
    for (std::size_t k = 0; k < actions.size(); ++k) {
      action a = actions[k];
      const int rank = order.lanes[l].rank;
      const bool send = detail::is_send(a.kind), receive = detail::is_receive(a.kind);
      const int peer = send || receive ? detail::peer_rank(order, a) : rank;
      if (!(send && crosses(rank, peer)) && !(receive && crosses(peer, rank))) {
        out.push_back(a);
        continue;
      }
      if (a.joined || (k + 1 < actions.size() && actions[k + 1].joined) || order.lanes[l].stream != stream::compute)
        throw input_error("rank " + std::to_string(rank) + " " + to_text(a) +
                          ": transfers are staged before they are grouped or put into streams");
      const auto list = [&](transfer_leg leg) {
        a.kind = transfer_kind(traits_of(a.kind).payload, leg);
        out.push_back(a);
      };
      if (receive) {
        list(transfer_leg::h2d);
      } else {
        list(transfer_leg::d2h);
        list(transfer_leg::network);
      }
    }
  }
  return result;
}

/// The most transfers that one group holds.
inline constexpr int most_grouped_transfers = 256;

/// Groups transfers: sends and receives that follow each other in a compute lane, with nothing between, become one group. They
/// start together where they started one by one, so it adds no deadlock.
/// Throws: input_error for sizes, a stage map, lanes or single actions that do not make a schedule, as the passes below.
/// Complexity: O(actions).
[[nodiscard]] schedule group_transfers(schedule order);

/// Splits streams: transfers and collectives leave the compute lanes for lanes of their own, in the same order: one per rank
/// for copies to and from the host and for collectives, one per rank and peer for sends, receives and network transfers. A
/// group falls apart into what goes to the same lane. A stage that gathers its parameters more than once keeps doing so in the
/// compute lane, where the order says which gathering serves which computation.
/// Complexity: O(actions * log lanes).
[[nodiscard]] schedule split_streams(const schedule& order);

/// Lists communication, where crosses(from rank, to rank) by way of the hosts' memory, on streams of their own.
/// Throws: as add_transfers. Complexity: that of add_transfers and split_streams.
template <class Crosses>
[[nodiscard]] schedule by_way_of_hosts(const schedule& order, Crosses crosses) {
  return split_streams(stage_transfers(add_transfers(order), crosses));
}

/// The forwards of a schedule, in its order: what an evaluation runs, with the stages where the schedule has them. Ranks whose
/// transfers go by way of the hosts stay so.
/// Complexity: O(actions); where there are such transfers, that of by_way_of_hosts.
[[nodiscard]] schedule forwards_of(const schedule& order);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/passes.ipp>
#endif
