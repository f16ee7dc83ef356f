// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// Consecutive devices of one subcluster, counted node by node: mesh.device_count() of them from first_device on.
struct device_group {
  submesh mesh{};
  int first_device = 0;
  friend constexpr bool operator==(const device_group&, const device_group&) = default;
};

/// How two stages of one subcluster lie to each other: what their transfers depend on.
enum class proximity { other_node, same_node };

/// same_node if all devices of both stages are on one node of one subcluster with so many devices per node.
/// Throws: input_error unless both have groups, of at least one device from the first one on, and nodes at least one device.
[[nodiscard]] proximity proximity_of(const std::vector<device_group>& a, const std::vector<device_group>& b,
                                     int devices_per_node);

/// Devices of all groups together.
/// Throws: input_error for a group of less than 1 x 1 devices, and where their number does not fit an int.
[[nodiscard]] int device_count(const std::vector<device_group>& groups);

/// The shape that groups have together. Throws: input_error unless there are groups, as of device_count, and all lie in one
/// subcluster and take equally many devices of each node.
[[nodiscard]] submesh shape_of(const std::vector<device_group>& groups);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/device_group.ipp>
#endif
