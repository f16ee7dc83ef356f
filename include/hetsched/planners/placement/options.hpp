// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/placement_test.cpp.

#include <vector>

#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct placement_options {
  int stages = 0;                 ///< how many; 0: as many as are best
  std::vector<submesh> groups{};  ///< what a stage gets of each subcluster; empty: single devices
  bool prove = true;              ///< in training, whether the evidence is to bound the iteration, which takes a while
  /// Of inference: so many subclusters or, where these have nodes of several devices, nodes, from the first on, are all that it
  /// looks at and that its bound is of; 0: all.
  int parts = 0;
};

}  // namespace hetsched
