// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <cstdint>
#include <vector>

#include <hetsched/planners/hexiscale/partition.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct hexiscale_options {
  int max_pipelines = 32;
  std::vector<double> balance = {1.1, 1.5};  ///< the heaviest group over the average: each is tried
  int seeds = 2;                             ///< partitions tried of each kind
  std::uint64_t seed = 0;                    ///< the first of them
  int most_vertices = 64;                    ///< of the device graph, unless there are more nodes: nodes are cut as finely
  int top = 2;                               ///< widest links that the search for the order of sets follows (tau)
  /// A stage computes nothing while its transfers are under way, and hexiscale_iteration_s judges, as in the paper. The
  /// prediction is evaluate's all the same. Not polished.
  bool serial_transfers = false;
  bool polish = true;          ///< solve each pipeline anew by interop_dp, under exact warm-ups
  double polish_effort = 0.5;  ///< of each: interop_options::effort
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;     ///< H-1F1B's tolerance
  device_partitioner partitioner = {};  ///< none: grow_and_refine
};

}  // namespace hetsched
