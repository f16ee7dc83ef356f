// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/reshard/strategies_test.cpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <hetsched/reshard/slice.hpp>

namespace hetsched {

/// A slice that one device sends to another.
struct slice_message {
  int from = 0;  ///< sources are devices 0 to sources - 1, destinations follow
  int to = 0;
  std::size_t intervals = 0;  ///< where its slice begins in transfer_plan::intervals
  std::int64_t elements = 0;
  friend constexpr bool operator==(const slice_message&, const slice_message&) = default;
};

/// Who sends which slice of a tensor to whom, so that what is laid out on some devices comes to lie on others as another layout
/// says. A message can leave once all messages of earlier phases to its sender that overlap its slice have come; what a device
/// then holds counts, not the barrier.
struct transfer_plan {
  std::string_view strategy{};
  int sources = 0;
  int destinations = 0;
  std::size_t dimensions = 0;
  int chunks = 1;                         ///< parts of the tensor that go through all phases one behind the other
  std::vector<interval> intervals{};      ///< of all messages, dimensions of them each
  std::vector<slice_message> messages{};  ///< phase by phase
  std::vector<std::size_t> phases{0};     ///< the first message of each phase, and their number; chunk by chunk

  std::vector<std::int64_t> wanted{};  ///< elements of each destination's slice

  [[nodiscard]] std::span<const interval> slice_of(const slice_message& m) const {
    return std::span(intervals).subspan(m.intervals, dimensions);
  }
  [[nodiscard]] std::size_t phase_count() const { return phases.size() - 1; }
  [[nodiscard]] std::span<const slice_message> phase(std::size_t p) const {
    return std::span(messages).subspan(phases[p], phases[p + 1] - phases[p]);
  }
  /// Whether a message goes from a source to a destination.
  [[nodiscard]] bool crosses(const slice_message& m) const { return m.from < sources && m.to >= sources; }
  friend bool operator==(const transfer_plan&, const transfer_plan&) = default;
};

}  // namespace hetsched
