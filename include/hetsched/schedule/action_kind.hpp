// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

/// What a rank can do. Tensors on their way between virtual stages s and s + 1 are named by the stage that lists the action:
/// stage s sends the activation that stage s + 1 receives, stage s + 1 sends the gradient that stage s receives. Over a slow
/// network the sender may list d2h (device to host) and network in place of send, and the receiver h2d (host to device) in
/// place of receive.
enum class action_kind : std::uint8_t {
  forward,
  backward,        ///< whole: input and weight gradients
  backward_input,  ///< input gradient only; the weight gradient follows by itself
  backward_weight,
  recompute,  ///< the forward once more, before the backward
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  d2h_activation,
  network_activation,
  h2d_activation,
  d2h_gradient,
  network_gradient,
  h2d_gradient,
  all_gather,        ///< of a stage's sharded parameters; this and what follows have no microbatch
  release,           ///< of gathered parameters
  reduce_scatter,    ///< of a stage's gradients
  reduce_gradients,  ///< over the copies of a stage in all directions
  optimizer,
  post_send_activation,  ///< of these the rank takes no time: a transfer of a lane of its own may begin
  post_receive_activation,
  post_send_gradient,
  post_receive_gradient,
  post_reduction,
  wait_send_activation,  ///< it has ended: what is sent has arrived
  wait_receive_activation,
  wait_send_gradient,
  wait_receive_gradient,
  wait_reduction,
};
inline constexpr int action_kinds = static_cast<int>(action_kind::wait_reduction) + 1;

/// What kinds of actions have in common: computations take a microbatch and a rank's compute time, transfers move a tensor of a
/// microbatch over a boundary between stages, work on parameters concerns a stage once for all microbatches, marks say where a
/// lane lets a transfer or reduction of another lane begin, or waits for its end.
enum class action_role : std::uint8_t { computation, transfer, parameters, post, wait };

/// The tensor that a computation makes for the stage behind or before it, or that a transfer moves there.
enum class action_payload : std::uint8_t { none, activation, gradient };

/// Which part of a transfer: both ends of one leg, or the three legs by way of the hosts.
enum class transfer_leg : std::uint8_t { none, send, receive, d2h, network, h2d };
inline constexpr std::size_t transfer_legs = 6;

/// All that is to be known of a kind.
struct action_traits {
  action_kind kind = action_kind::forward;
  action_role role = action_role::computation;
  action_payload payload = action_payload::none;
  transfer_leg leg = transfer_leg::none;
  bool outgoing = false;  ///< a transfer that the sending rank lists
};

namespace detail {

/// By kind.
inline constexpr action_traits kind_traits[action_kinds] = {
    {action_kind::forward, action_role::computation, action_payload::activation},
    {action_kind::backward, action_role::computation, action_payload::gradient},
    {action_kind::backward_input, action_role::computation, action_payload::gradient},
    {action_kind::backward_weight, action_role::computation},
    {action_kind::recompute, action_role::computation},
    {action_kind::send_activation, action_role::transfer, action_payload::activation, transfer_leg::send, true},
    {action_kind::receive_activation, action_role::transfer, action_payload::activation, transfer_leg::receive},
    {action_kind::send_gradient, action_role::transfer, action_payload::gradient, transfer_leg::send, true},
    {action_kind::receive_gradient, action_role::transfer, action_payload::gradient, transfer_leg::receive},
    {action_kind::d2h_activation, action_role::transfer, action_payload::activation, transfer_leg::d2h, true},
    {action_kind::network_activation, action_role::transfer, action_payload::activation, transfer_leg::network, true},
    {action_kind::h2d_activation, action_role::transfer, action_payload::activation, transfer_leg::h2d},
    {action_kind::d2h_gradient, action_role::transfer, action_payload::gradient, transfer_leg::d2h, true},
    {action_kind::network_gradient, action_role::transfer, action_payload::gradient, transfer_leg::network, true},
    {action_kind::h2d_gradient, action_role::transfer, action_payload::gradient, transfer_leg::h2d},
    {action_kind::all_gather, action_role::parameters},
    {action_kind::release, action_role::parameters},
    {action_kind::reduce_scatter, action_role::parameters},
    {action_kind::reduce_gradients, action_role::parameters},
    {action_kind::optimizer, action_role::parameters},
    {action_kind::post_send_activation, action_role::post, action_payload::activation, transfer_leg::send},
    {action_kind::post_receive_activation, action_role::post, action_payload::activation, transfer_leg::receive},
    {action_kind::post_send_gradient, action_role::post, action_payload::gradient, transfer_leg::send},
    {action_kind::post_receive_gradient, action_role::post, action_payload::gradient, transfer_leg::receive},
    {action_kind::post_reduction, action_role::post},
    {action_kind::wait_send_activation, action_role::wait, action_payload::activation, transfer_leg::send},
    {action_kind::wait_receive_activation, action_role::wait, action_payload::activation, transfer_leg::receive},
    {action_kind::wait_send_gradient, action_role::wait, action_payload::gradient, transfer_leg::send},
    {action_kind::wait_receive_gradient, action_role::wait, action_payload::gradient, transfer_leg::receive},
    {action_kind::wait_reduction, action_role::wait},
};

[[nodiscard]] constexpr bool traits_in_order() {
  for (int k = 0; k < action_kinds; ++k)
    if (kind_traits[k].kind != static_cast<action_kind>(k)) return false;
  return true;
}
static_assert(traits_in_order());

/// The kinds of one role, by payload and leg.
struct kinds_of_role {
  action_kind kinds[3][transfer_legs] = {};
  explicit constexpr kinds_of_role(action_role role) {
    for (const auto& t : kind_traits)
      if (t.role == role) at(at(kinds, t.payload), t.leg) = t.kind;
  }
  [[nodiscard]] constexpr action_kind of(action_payload payload, transfer_leg leg) const { return at(at(kinds, payload), leg); }
};
inline constexpr kinds_of_role transfers_by_payload(action_role::transfer), posts_by_payload(action_role::post),
    waits_by_payload(action_role::wait);

}  // namespace detail

namespace detail {

/// Throws: input_error unless it is one of the enumerators.
constexpr void expect_kind(action_kind k) {
  if (static_cast<int>(k) >= action_kinds) throw input_error("there is no action of kind " + std::to_string(static_cast<int>(k)));
}

}  // namespace detail

// Of kinds, these and what follows are asked in the inner loops of simulation, for any enumerator.

/// What is to be known of a kind.
/// Requires: one of the enumerators.
[[nodiscard]] constexpr const action_traits& traits_of(action_kind k) { return at(detail::kind_traits, k); }

/// The kind that moves a payload in a leg.
/// Requires: neither is none.
[[nodiscard]] constexpr action_kind transfer_kind(action_payload payload, transfer_leg leg) {
  return detail::transfers_by_payload.of(payload, leg);
}

/// The kinds that take a microbatch and a rank's compute time.
[[nodiscard]] constexpr bool is_compute(action_kind k) { return traits_of(k).role == action_role::computation; }
/// The kinds that move an activation or a gradient.
[[nodiscard]] constexpr bool is_transfer(action_kind k) { return traits_of(k).role == action_role::transfer; }
/// The kinds that concern a stage's parameters, once for all microbatches.
[[nodiscard]] constexpr bool is_parameter(action_kind k) { return traits_of(k).role == action_role::parameters; }
/// The kinds that say where a lane lets a transfer or reduction begin, or waits for its end.
[[nodiscard]] constexpr bool is_mark(action_kind k) {
  return traits_of(k).role == action_role::post || traits_of(k).role == action_role::wait;
}
/// What a mark lets begin or waits for.
/// Requires: is_mark(k).
[[nodiscard]] constexpr action_kind marked_kind(action_kind k) {
  const auto& t = traits_of(k);
  return t.leg == transfer_leg::none ? action_kind::reduce_gradients : transfer_kind(t.payload, t.leg);
}
/// The mark that lets a send, receive or reduction begin, and the one that waits for its end.
/// Requires: a kind that lists one of them.
[[nodiscard]] constexpr action_kind post_of(action_kind k) {
  return k == action_kind::reduce_gradients ? action_kind::post_reduction
                                            : detail::posts_by_payload.of(traits_of(k).payload, traits_of(k).leg);
}
[[nodiscard]] constexpr action_kind wait_of(action_kind k) {
  return k == action_kind::reduce_gradients ? action_kind::wait_reduction
                                            : detail::waits_by_payload.of(traits_of(k).payload, traits_of(k).leg);
}
/// Whether an action of that kind is one of a microbatch.
[[nodiscard]] constexpr bool takes_microbatch(action_kind k) {
  return !is_parameter(k) && k != action_kind::post_reduction && k != action_kind::wait_reduction;
}
/// The computations that make an activation for the next stage or a gradient for the one before, and take one likewise.
[[nodiscard]] constexpr bool makes_tensor(action_kind k) { return is_compute(k) && traits_of(k).payload != action_payload::none; }
/// Of these, the whole backward and backward_input.
[[nodiscard]] constexpr bool makes_gradient(action_kind k) {
  return is_compute(k) && traits_of(k).payload == action_payload::gradient;
}
/// The transfers of gradients.
[[nodiscard]] constexpr bool moves_gradient(action_kind k) {
  return is_transfer(k) && traits_of(k).payload == action_payload::gradient;
}
/// The kinds that inference does not have: backwards and recomputation, and what becomes of gradients.
[[nodiscard]] constexpr bool is_training(action_kind k) {
  if (!takes_microbatch(k)) return k != action_kind::all_gather && k != action_kind::release;
  if (is_mark(k)) return traits_of(k).payload == action_payload::gradient;
  return moves_gradient(k) || (is_compute(k) && k != action_kind::forward);
}

}  // namespace hetsched
