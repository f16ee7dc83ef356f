// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/placement_test.cpp.

#include <vector>

#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// What problems leave open.
struct placement_options {
  int stages = 0;                 ///< how many; 0: as many as are best
  std::vector<submesh> groups{};  ///< what a stage gets of each subcluster; empty: single devices
  bool prove = true;              ///< in training, whether the evidence is to bound the iteration, which takes a while
};

}  // namespace hetsched
