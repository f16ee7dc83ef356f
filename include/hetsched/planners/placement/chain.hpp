// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/search_test.cpp.

#include <cstddef>
#include <functional>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// A way to run a stage on devices of one kind. Sums have one entry per layer and one more: of the layers before it.
struct placement_kind {
  int pool = 0;                            ///< whose devices it takes, in placement_chain::pools
  std::vector<double> seconds_before{};    ///< of what a stage computes
  std::vector<double> state_before{};      ///< bytes, whatever is in flight
  std::vector<double> in_flight_before{};  ///< bytes for each request or microbatch in flight
  std::vector<double> temporary{};         ///< bytes, by layer; of a stage, the largest
  memory_room memory{};
  std::vector<parameter_copy> copies{};  ///< of what layers share: they count once in a stage that has both

  /// Bytes of layers in one stage, whatever is in flight.
  [[nodiscard]] double state(layer_range layers) const {
    double bytes = state_before[as_size(layers.last)] - state_before[as_size(layers.first)];
    for (const auto& c : copies)
      if (c.is_within(layers)) bytes -= static_cast<double>(c.weight_bytes);
    return bytes;
  }
};

/// Devices, or equal groups of them, that serve alike.
struct placement_pool {
  int count = 1;  ///< stages that find room
  int twin = -1;  ///< an equal pool with equal links, to be used first; -1: none
};

/// What moving a tensor from stage to stage takes; infinity where no link leads.
struct placement_transfer {
  double seconds = 0;     ///< that a request or a microbatch waits
  double occupied_s = 0;  ///< until the next one can follow
};

/// A chain of layers to cut into stages, and where these can lie.
struct placement_chain {
  int layers = 0;
  std::vector<placement_pool> pools{};
  std::vector<placement_kind> kinds{};
  std::vector<placement_transfer> transfers{};  ///< [kind of boundary][kind before][kind behind]
  std::vector<int> boundary_kinds{};            ///< of the boundary after each layer but the last; empty: each its own
  int stages = 0;                               ///< how many there must be; 0: as many as are best
  /// What the n-th stage from the end, which is 1, holds in flight.
  /// Requires: does not fall with n.
  std::function<double(int)> in_flight = [](int) { return 1.0; };

  [[nodiscard]] int boundary_kind(int boundary) const { return boundary_kinds.empty() ? boundary : at(boundary_kinds, boundary); }
  [[nodiscard]] const placement_transfer& transfer(int boundary, int from, int to) const {
    const auto k = kinds.size();
    return transfers[(as_size(boundary_kind(boundary)) * k + as_size(from)) * k + as_size(to)];
  }
};

namespace detail {

/// Throws input_error unless a chain has layers, pools and kinds that fit each other, sums that do not fall but by rounding, and
/// transfers whose times are none below 0.
void validate(const placement_chain& chain);

}  // namespace detail

/// A stage of a chain.
struct placed_stage {
  layer_range layers{};
  int kind = 0;
  friend bool operator==(const placed_stage&, const placed_stage&) = default;
};

/// Stages from first to last, and what they take.
struct placed_chain {
  std::vector<placed_stage> stages{};
  double sum_s = 0;      ///< of all stages and transfers
  double slowest_s = 0;  ///< of all stages' seconds and transfers' occupied_s
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/placement/chain.ipp>
#endif
