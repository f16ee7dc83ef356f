// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/search/mixed_costs_test.cpp.

#include <vector>

#include <hetsched/core/index.hpp>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// Consecutive devices of one subcluster, of which every node of a view's subcluster takes the next `devices`.
struct view_slice {
  int subcluster = 0;
  int first_device = 0;
  int devices = 1;  ///< whole nodes, or an equal part of one
  friend constexpr bool operator==(const view_slice&, const view_slice&) = default;
};

/// A cluster as planners see it, in which some devices of unlike subclusters form a subcluster of mixed nodes: a stage on those
/// is one of unlike devices. Every device belongs to one subcluster of the view.
struct mixed_view {
  cluster hardware{};                         ///< what a planner is given
  std::vector<std::vector<view_slice>> of{};  ///< by subcluster of it: one slice where it is plain
  [[nodiscard]] bool is_mixed(int subcluster) const { return at(of, subcluster).size() > 1; }
};

/// The devices of the cluster that devices of a view are. Requires: of mixed nodes, whole ones.
[[nodiscard]] std::vector<device_group> devices_behind(const mixed_view& view, const cluster& hardware, const device_group& seen);

/// Views of a cluster that are worth a search: for each two subclusters that a link joins a mixed node of all
/// their devices, of a node each, once and as often as there are, and where both have one node of half of each; for more than two
/// that are all joined, one of all devices. O(subclusters^2).
[[nodiscard]] std::vector<mixed_view> mixed_views(const cluster& c);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/mixed_view.ipp>
#endif
