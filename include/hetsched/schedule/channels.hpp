// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// What a rank waits for when it sends. Buffered: for nothing, a channel holds any number of tensors, and a receive takes the
/// one that it names. Rendezvous: for the receive, the two take place together; the channel from one rank to another delivers
/// in the order of the sends. In both, the members of a group start together, and its lane goes on when all have ended.
enum class channels { buffered, rendezvous };

namespace detail {

/// The kinds that the sending rank lists: send, d2h and network.
[[nodiscard]] constexpr bool is_outgoing(action_kind k) {
  using enum action_kind;
  return is_transfer(k) && k != receive_activation && k != receive_gradient && k != h2d_activation && k != h2d_gradient;
}

/// The virtual stage that a transfer goes to or comes from. Precondition: is_transfer(a.kind).
[[nodiscard]] constexpr int peer_stage(const action& a) {
  return is_outgoing(a.kind) == moves_gradient(a.kind) ? a.stage - 1 : a.stage + 1;
}

/// The rank that a transfer goes to or comes from. Precondition: it crosses a boundary of the schedule.
[[nodiscard]] inline int peer_rank(const schedule& order, const action& a) { return order.rank(a.replica, peer_stage(a)); }

/// What the other rank lists for a send, receive, network or h2d.
[[nodiscard]] constexpr action other_end(action a) {
  using enum action_kind;
  a.stage = peer_stage(a);
  switch (a.kind) {
    case send_activation:
      a.kind = receive_activation;
      break;
    case receive_activation:
      a.kind = send_activation;
      break;
    case send_gradient:
      a.kind = receive_gradient;
      break;
    case receive_gradient:
      a.kind = send_gradient;
      break;
    case network_activation:
      a.kind = h2d_activation;
      break;
    case h2d_activation:
      a.kind = network_activation;
      break;
    case network_gradient:
      a.kind = h2d_gradient;
      break;
    case h2d_gradient:
      a.kind = network_gradient;
      break;
    default:
      break;
  }
  return a;
}

[[nodiscard]] constexpr bool is_send(action_kind k) {
  return k == action_kind::send_activation || k == action_kind::send_gradient;
}
[[nodiscard]] constexpr bool is_receive(action_kind k) {
  return k == action_kind::receive_activation || k == action_kind::receive_gradient;
}

}  // namespace detail

}  // namespace hetsched
