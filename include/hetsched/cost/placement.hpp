// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// Parallel sizes inside a stage. data * context * tensor = devices of the submesh.
struct degrees {
  int data = 1;
  int context = 1;
  int tensor = 1;
  friend constexpr bool operator==(degrees, degrees) = default;
};

/// Where and how a stage runs: a shape cut from a subcluster, and the parallel sizes on it.
struct placement {
  submesh mesh;
  hetsched::degrees degrees;
  friend constexpr bool operator==(const placement&, const placement&) = default;
};

/// What a stage costs per microbatch (seconds) and holds per device (bytes).
struct stage_cost {
  double forward_s = 0;
  double backward_s = 0;         ///< recomputation included
  bytes_t weight_bytes = 0;      ///< held whatever the schedule: weights, gradients, optimizer state
  bytes_t activation_bytes = 0;  ///< held per microbatch in flight
  double weight_backward_s = 0;  ///< of backward_s, the weight gradients' time; 0 if not told apart

  [[nodiscard]] constexpr double total_s() const { return forward_s + backward_s; }

  constexpr stage_cost& operator+=(const stage_cost& other) {
    forward_s += other.forward_s;
    backward_s += other.backward_s;
    weight_backward_s += other.weight_backward_s;
    weight_bytes = checked_add(weight_bytes, other.weight_bytes);
    activation_bytes = checked_add(activation_bytes, other.activation_bytes);
    return *this;
  }
  friend constexpr bool operator==(const stage_cost&, const stage_cost&) = default;
};

}  // namespace hetsched
