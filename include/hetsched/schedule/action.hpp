// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace hetsched {

/// Steps of a pipeline. Transfers follow from the computations: they are not listed in a schedule, but appear in timelines.
enum class action_kind : std::uint8_t { forward, backward, send_activation, send_gradient };

/// One step of a stage for one microbatch, 0-based.
struct action {
  action_kind kind = action_kind::forward;
  int microbatch = 0;
  friend constexpr bool operator==(action, action) = default;
};

/// The order in which every stage computes: one list per stage, forward and backward only.
struct schedule {
  int microbatches = 0;
  std::vector<std::vector<action>> stages;
  friend bool operator==(const schedule&, const schedule&) = default;
};

/// An action with its time. `place` is the stage of a computation, the boundary of a transfer.
struct timed_action {
  action_kind kind = action_kind::forward;
  int place = 0;
  int microbatch = 0;
  double start_s = 0;
  double end_s = 0;
  friend constexpr bool operator==(const timed_action&, const timed_action&) = default;
};

/// Everything that happens in one iteration, predicted or measured; ordered by place and kind, then by time.
struct timeline {
  int stages = 0;
  int microbatches = 0;
  std::vector<timed_action> actions;
};

}  // namespace hetsched
