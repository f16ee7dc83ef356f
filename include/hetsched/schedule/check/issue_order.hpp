// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched {

/// In which order every rank issues its communication with other ranks, where a device may do one thing after the other
/// whatever the number of its streams: sends, receives and reductions of gradients; an action that is joined begins with the
/// one before it. Transfers by way of the host are not in it.
struct issue_order {
  std::vector<std::vector<action>> of_rank;
  friend bool operator==(const issue_order&, const issue_order&) = default;
};

/// What comes by way of the host, when all takes place in one order with what is issued.
struct host_arrival {
  action what;             ///< the copy to the device
  std::size_t behind = 0;  ///< so many of the actions that its rank issues
};

/// An issue order, or why there is none: a cycle of actions each of which waits for the next, as a sentence.
struct found_issue_order {
  issue_order order;
  std::vector<std::vector<host_arrival>> arrivals;  ///< by rank
  std::vector<std::string> cycles;
};

namespace detail {

[[nodiscard]] inline bool is_issued(const schedule& order, const action& a) {
  if (is_send(a.kind) || is_receive(a.kind)) return true;
  return a.kind == action_kind::reduce_gradients && order.directions == 2 && order.rank(0, a.stage) != order.rank(1, a.stage);
}

namespace unchecked {

// The function of the same name below, of a schedule that is known to be one.
[[nodiscard]] std::vector<std::string> check_issue_order(const schedule& order, const issue_order& issued);

}  // namespace unchecked

/// The schedule whose ranks have what they issue in one more lane each.
[[nodiscard]] schedule with_issue_lanes(const schedule& order, const issue_order& issued);

}  // namespace detail

/// Proves an issue order: all ranks come to their end if every device does its communication strictly one event after the
/// other, a send lasts until its receive has begun, and computations go on beside it as soon as they have what they need.
/// Requires: the schedule lists all transfers.
/// Throws: input_error for a schedule whose structure is not sound, with the first sentence of check().
/// Returns: nothing if that is so; else what is missing or listed twice, or the cycles, one sentence each.
/// Complexity: O(actions).
[[nodiscard]] std::vector<std::string> check_issue_order(const schedule& order, const issue_order& issued);

/// Finds an issue order: communication in the order in which it takes place when every lane of the schedule goes as far as it
/// can. Any schedule that is free of deadlock under rendezvous has one, and gets one that check_issue_order proves, as both ends
/// of a transfer have the same place among all transfers. None is grouped.
/// Requires: the schedule lists all transfers.
/// Throws: as check_issue_order.
/// Complexity: O(actions).
[[nodiscard]] found_issue_order find_issue_order(const schedule& order);

/// Groups exchanges: where two ranks issue a send and a receive between them one behind the other, both ends begin with the two
/// at once, so that the directions overlap. Only where the order is still proved with them; groups of two, the same at both
/// ends.
/// Throws: as check_issue_order, and input_error with what that finds wrong.
/// Complexity: O(exchanges * actions).
[[nodiscard]] issue_order group_exchanges(const schedule& order, issue_order issued);

/// Groups relays: where a rank issues a receive from one rank and a send to another, in either order, one behind the other, it
/// begins with the two at once, so that they overlap; the ranks at the other ends may group them with others. Groups of two. Only
/// where all that is so joined, across ranks, can be done as one without a cycle: then ranks come to an end, too, whose devices
/// do a group's transfers one after the other, those of lower pairs of ranks first.
/// Throws: as check_issue_order, and input_error with what that finds wrong.
/// Complexity: O((1 + wrong) * log(relays) * (actions + needs)), where so many relays begin together but cannot be joined.
[[nodiscard]] issue_order group_relays(const schedule& order, issue_order issued);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/check/issue_order.ipp>
#endif
