// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/evaluate/evaluate.hpp>

namespace hetsched {

/// Where the time of an iteration goes, seen from its busiest stage; the parts add up to it.
struct breakdown {
  int pipeline = 0, stage = 0;
  double compute_s = 0;
  double collective_s = 0;  ///< of tensor and context parallelism and of ZeRO, in forward and backward
  double transfer_s = 0;    ///< the iteration less one with free transfers between stages
  double bubble_s = 0;      ///< waiting for other stages, and for other pipelines
  double gradient_reduction_s = 0;
  double optimizer_s = 0;
};

/// The same hardware, but links take no time.
[[nodiscard]] cluster with_free_links(cluster c);

/// Where the time of an evaluated plan goes. `alone`: the same plan evaluated by costs on with_free_links of the cluster.
/// Throws: as evaluate; and input_error for plans that were not evaluated, or have other stages. Complexity: that of evaluate.
[[nodiscard]] breakdown break_down(const cluster& hardware, const evaluation& whole, const evaluation& alone);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/breakdown.ipp>
#endif
