// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/network/collective_test.cpp.

#include <span>

#include <hetsched/cluster/cluster.hpp>

/// The cost model of HexiScale (Yan et al., App. A), in which a group's devices send to each other one by one. It prices any set
/// of devices by the links between each two of them, where the other formulas take equal nodes. Full recomputation is assumed.
/// All of it throws input_error for sizes, bytes and rates that are negative or not finite, for groups of no device, and for
/// devices that the cluster does not have.
namespace hetsched::hexiscale_cost {

/// A transformer layer and what a microbatch makes of it.
struct layer_shape {
  double samples = 1;  ///< of a microbatch
  double sequence = 0;
  double hidden = 0;
  double element_bytes = 2;

  [[nodiscard]] double activation_bytes() const { return samples * sequence * hidden * element_bytes; }
  [[nodiscard]] double parameter_bytes() const { return 12 * hidden * hidden * element_bytes; }
};

/// Seconds until each device has sent `bytes` / |group| to each other; 0 for one device, infinity where no link joins two.
/// O(devices^2).
[[nodiscard]] double exchange_s(const cluster& c, std::span<const device_id> group, double bytes);

/// Seconds of a layer's arithmetic on `devices` equal devices of `flops` FLOP/s each.
[[nodiscard]] double compute_layer_s(const layer_shape& l, double flops, int devices);

/// Seconds of a layer's tensor-parallel communication: six all-reduces, of two exchanges each.
[[nodiscard]] double tensor_layer_s(const layer_shape& l, const cluster& c, std::span<const device_id> group);

/// Seconds to all-reduce a layer's gradients among the devices that hold it.
[[nodiscard]] double gradient_layer_s(const layer_shape& l, const cluster& c, std::span<const device_id> group);

/// Seconds of both directions between two stages: the best pair of leaders carries the tensor, and the receiving one
/// hands it on to its group. O(|from| * |to|^2).
[[nodiscard]] double boundary_s(const layer_shape& l, const cluster& c, std::span<const device_id> from,
                                std::span<const device_id> to);

namespace detail::unchecked {

/// The same of senders and receivers that the cluster need not have: only which subcluster and node they are on counts.
[[nodiscard]] double boundary_s(const layer_shape& l, const cluster& c, std::span<const device_id> from,
                                std::span<const device_id> to);

}  // namespace detail::unchecked

/// Bytes that a device of a group holds of a layer: weights, gradients and optimizer, and one kept input.
[[nodiscard]] double layer_bytes(const layer_shape& l, int devices);

}  // namespace hetsched::hexiscale_cost

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/hexiscale.ipp>
#endif
