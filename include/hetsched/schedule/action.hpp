// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/dependencies_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

namespace detail {

// More than a program can be told of by its counts, and little enough to make such tables.
inline constexpr int most_stages = 1 << 24;

}  // namespace detail

/// The microbatch of actions that have none.
inline constexpr int no_microbatch = -1;

/// One step of a rank: a kind, a virtual stage and a microbatch, 0-based. In a bidirectional schedule the stage lives on
/// several ranks, one copy per direction.
struct action {
  action_kind kind = action_kind::forward;
  /// One event with the action before it in the list: a group of transfers, or a forward and a backward fused.
  bool joined = false;
  std::int16_t direction = 0;
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
/// Every microbatch passes through the stages of one direction.
struct schedule {
  int ranks = 0;
  int stages = 0;  ///< virtual stages in a direction
  int directions = 1;
  int microbatches = 0;
  std::vector<int> rank_of;  ///< directions x stages, direction by direction: the rank of a virtual stage
  std::vector<lane> lanes;   ///< the compute stream of rank r is lanes[r]; other streams come behind

  [[nodiscard]] int rank(int direction, int stage) const {
    return rank_of[as_size(direction) * as_size(stages) + as_size(stage)];
  }
  friend bool operator==(const schedule&, const schedule&) = default;
};

/// Whether any rank lists an action of that kind. O(actions).
[[nodiscard]] bool lists(const schedule& order, action_kind kind);

/// Whether a schedule is one of inference, which is complete with its forwards. What these hold, they hold to the end.
/// Throws: input_error for an action of no kind.
/// O(actions).
[[nodiscard]] bool is_forward_only(const schedule& order);

/// The empty schedule of one stage per rank, or of any stage map: compute lanes without actions.
/// Throws: input_error unless there is a rank, a microbatch, a direction, and a map of equally many stages of each direction on
/// these ranks.
[[nodiscard]] schedule make_schedule(int ranks, int microbatches, std::vector<int> rank_of, int directions = 1);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/action.ipp>
#endif
