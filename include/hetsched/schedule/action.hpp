// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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
  reduce_gradients,  ///< over the replicas of a stage
  optimizer,
};
inline constexpr int action_kinds = static_cast<int>(action_kind::optimizer) + 1;

/// The kinds from forward to recompute: they take a microbatch and a rank's compute time.
[[nodiscard]] constexpr bool is_compute(action_kind k) { return k <= action_kind::recompute; }
/// The kinds that move an activation or a gradient.
[[nodiscard]] constexpr bool is_transfer(action_kind k) {
  return k >= action_kind::send_activation && k <= action_kind::h2d_gradient;
}
/// The kinds that concern a stage's parameters, once for all microbatches.
[[nodiscard]] constexpr bool is_parameter(action_kind k) { return k >= action_kind::all_gather; }
[[nodiscard]] constexpr bool moves_gradient(action_kind k) {
  return k == action_kind::send_gradient || k == action_kind::receive_gradient ||
         (k >= action_kind::d2h_gradient && k <= action_kind::h2d_gradient);
}

/// The microbatch of actions that have none.
inline constexpr int no_microbatch = -1;

/// One step of a rank: a kind, a virtual stage and a microbatch, 0-based. In a bidirectional schedule the stage lives on
/// several ranks; `replica` says which copy.
struct action {
  action_kind kind = action_kind::forward;
  /// One event with the action before it in the list: a group of transfers, or a forward and a backward fused.
  bool joined = false;
  std::int16_t replica = 0;
  int stage = 0;
  int microbatch = 0;
  friend constexpr bool operator==(const action&, const action&) = default;
};

/// Concurrent queues of a rank. Send, receive and network queues exist once per peer: one queue per directed edge.
enum class stream : std::uint8_t { compute, send, receive, d2h, network, h2d, collective };

/// What one stream of a rank does, in order.
struct lane {
  int rank = 0;
  hetsched::stream stream = hetsched::stream::compute;
  int peer = -1;  ///< rank at the other end of a send, receive or network stream, else -1
  std::vector<action> actions;
  friend bool operator==(const lane&, const lane&) = default;
};

/// Who does what in which order; what it costs is kept apart, in a workload. Lists may name computations only, transfers then
/// follow from them: every result is sent as soon as it is there, over channels that hold any number.
/// Every microbatch passes through the stages of one replica.
struct schedule {
  int ranks = 0;
  int stages = 0;  ///< virtual stages of a replica
  int replicas = 1;
  int microbatches = 0;
  std::vector<int> rank_of;  ///< replicas x stages, replica by replica: the rank of a virtual stage
  std::vector<lane> lanes;   ///< the compute stream of rank r is lanes[r]; other streams come behind

  [[nodiscard]] int rank(int replica, int stage) const {
    return rank_of[static_cast<std::size_t>(replica) * static_cast<std::size_t>(stages) + static_cast<std::size_t>(stage)];
  }
  friend bool operator==(const schedule&, const schedule&) = default;
};

/// The empty schedule of one stage per rank, or of any placement of stages on ranks: compute lanes without actions.
[[nodiscard]] inline schedule make_schedule(int ranks, int microbatches, std::vector<int> rank_of, int replicas = 1) {
  schedule result{.ranks = ranks,
                  .stages = static_cast<int>(rank_of.size()) / replicas,
                  .replicas = replicas,
                  .microbatches = microbatches,
                  .rank_of = std::move(rank_of),
                  .lanes = {}};
  for (int r = 0; r < ranks; ++r) result.lanes.push_back({.rank = r, .stream = stream::compute, .peer = -1, .actions = {}});
  return result;
}

}  // namespace hetsched
