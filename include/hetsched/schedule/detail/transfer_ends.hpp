// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

[[nodiscard]] constexpr bool is_send(action_kind k) { return is_transfer(k) && traits_of(k).leg == transfer_leg::send; }
[[nodiscard]] constexpr bool is_receive(action_kind k) { return is_transfer(k) && traits_of(k).leg == transfer_leg::receive; }
[[nodiscard]] constexpr bool is_d2h(action_kind k) { return traits_of(k).leg == transfer_leg::d2h; }
[[nodiscard]] constexpr bool is_network(action_kind k) { return traits_of(k).leg == transfer_leg::network; }
[[nodiscard]] constexpr bool is_h2d(action_kind k) { return traits_of(k).leg == transfer_leg::h2d; }
/// The kinds that are one leg of three.
[[nodiscard]] constexpr bool is_staged(action_kind k) { return is_d2h(k) || is_network(k) || is_h2d(k); }
/// The kinds that the sending rank lists: send, d2h and network.
[[nodiscard]] constexpr bool is_outgoing(action_kind k) { return traits_of(k).outgoing; }

/// The stream that a leg goes to where transfers have streams of their own.
[[nodiscard]] constexpr stream stream_of(transfer_leg leg) {
  constexpr stream by_leg[transfer_legs] = {stream::compute, stream::send,    stream::receive,
                                            stream::d2h,     stream::network, stream::h2d};
  return by_leg[static_cast<int>(leg)];
}

/// The virtual stage that takes what the action makes or sends.
/// Requires: it has a payload, and is no receive or h2d.
[[nodiscard]] constexpr int next_stage(const action& a) {
  return traits_of(a.kind).payload == action_payload::gradient ? a.stage - 1 : a.stage + 1;
}

/// The virtual stage that a transfer goes to or comes from.
/// Requires: is_transfer(a.kind).
[[nodiscard]] constexpr int peer_stage(const action& a) {
  const auto& traits = traits_of(a.kind);
  return traits.outgoing == (traits.payload == action_payload::gradient) ? a.stage - 1 : a.stage + 1;
}

/// The rank that a transfer goes to or comes from.
/// Requires: it crosses a boundary of the schedule.
[[nodiscard]] inline int peer_rank(const schedule& order, const action& a) { return order.rank(a.direction, peer_stage(a)); }

/// What the other rank lists for a send, receive, network or h2d.
[[nodiscard]] constexpr action other_end(action a) {
  constexpr transfer_leg across[transfer_legs] = {transfer_leg::none, transfer_leg::receive, transfer_leg::send,
                                                  transfer_leg::d2h,  transfer_leg::h2d,     transfer_leg::network};
  const auto& traits = traits_of(a.kind);
  a.stage = peer_stage(a);
  a.kind = transfer_kind(traits.payload, across[static_cast<int>(traits.leg)]);
  return a;
}

}  // namespace hetsched::detail
