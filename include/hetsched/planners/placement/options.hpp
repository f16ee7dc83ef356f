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
};

}  // namespace hetsched
