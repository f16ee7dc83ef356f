// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// How fast a device was seen to train a model: what costs from its datasheet are scaled to.
struct device_anchor {
  std::string device{};  ///< its name
  transformer model{};
  hetsched::precision precision = hetsched::precision::bf16;
  hetsched::degrees degrees{};  ///< of the devices of one node that trained it, as one stage
  int microbatch_size = 1;      ///< samples of all of them together
  double tokens_per_s = 0;      ///< of each device: those of all together, over the number of devices
};

/// The cluster with device::speed such that each anchored device trains its model as fast as was measured, forward and backward
/// of one stage; where a device has several anchors, at their geometric mean. Exchanges between devices stay as they are.
/// Throws: input_error, naming the device, for an anchor whose device the cluster does not have, whose degrees no node of it
/// offers, whose exchanges alone take longer than was measured, or which is more than a hundred times off; and as
/// training_costs.
/// Complexity: some tens of questions to a cost model for each anchor.
[[nodiscard]] cluster anchored(cluster hardware, std::span<const device_anchor> anchors,
                               const training_cost_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/anchor.ipp>
#endif
