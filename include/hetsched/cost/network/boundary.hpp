// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/link_index.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// What it takes to move a microbatch's tensor of `bytes` from one stage to the next, and its gradient back, by the cheapest of
/// direct, regroup_before, regroup_after and one_to_one: batch cut over data, sequence over context and tensor, evenly. Prices
/// are those of price_of; a stage lies on whole nodes or on a part of one. Over intra_node if both are on one node, inter_node in
/// one subcluster, else the link between the subclusters, of which every pair of nodes has the bandwidth. The gradient takes the
/// same messages back, at the bandwidth of its direction; what is cheapest over the slower one is chosen.
/// Returns: infinity where no link leads.
/// Throws: input_error for a stage of less than 1 x 1 devices, of degrees below 1 or for more devices than it has, or on a
/// subcluster that the cluster does not have, and for less than 0 bytes.
/// Complexity: O(slices that overlap + links).
[[nodiscard]] transfer_cost boundary_cost(const cluster& c, const placement& from, const placement& to, proximity near,
                                          bytes_t bytes);

/// The same with an index of the cluster's links. O(slices that overlap + log links).
[[nodiscard]] transfer_cost boundary_cost(const cluster& c, const link_index& links, const placement& from, const placement& to,
                                          proximity near, bytes_t bytes);

/// Placements of one subcluster with equal numbers have equal boundary_cost to and from all others.
[[nodiscard]] constexpr std::int64_t boundary_side_class(const placement& p) {
  return (std::int64_t{p.mesh.nodes} * 65536 + p.mesh.devices_per_node) * 65536 + p.degrees.data;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/network/boundary.ipp>
#endif
