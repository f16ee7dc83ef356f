// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/search/auto_schedule_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched::detail {

enum class step_kind : std::uint8_t { forward, input, weight };  // the backward is split: input gradient, then weight gradient

/// What decides the best order of a chain of stages, one per rank, all microbatches alike. As these can be exchanged, every rank
/// may as well take its forwards, its input gradients and its weight gradients each in the order of microbatches: an order of a
/// rank is a word of steps, and a tensor's turn on its link is that of its microbatch.
struct order_problem {
  struct way {
    double occupied_s = 0;  // a tensor holds its link so long,
    double latency_s = 0;   // and arrives so much later
  };
  struct stage {
    double cost[3] = {0, 0, 0};   // seconds of a step
    way down, up;                 // activation to the next stage, gradient to the one before
    double keeps[3] = {0, 0, 0};  // memory that a step takes, and gives back if negative
    double capacity = 0;
  };
  int microbatches = 0;
  bool split = false;  // the weight gradient is a step of its own; else its time and memory are in `input`
  std::vector<stage> stages;

  [[nodiscard]] std::size_t size() const { return stages.size(); }
  /// Microbatches that fit in a rank's memory, at most all.
  [[nodiscard]] int fitting(std::size_t i) const {
    const auto& s = stages[i];
    return s.capacity >= microbatches * s.keeps[0] ? microbatches : static_cast<int>(s.capacity / s.keeps[0]);
  }
  [[nodiscard]] int steps() const { return (split ? 3 : 2) * microbatches; }
};

/// Longer than any makespan: the answer for orders that never end.
inline constexpr double never_s = longest_time_s;

/// Words of all ranks in one array: rank i's are [i * steps, (i + 1) * steps).
using step_words = std::vector<step_kind>;

}  // namespace hetsched::detail
