// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

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
  hetsched::degrees degrees{};  ///< of the devices that trained it, as one stage
  int nodes = 1;                ///< that they were on, as many on each
  int microbatch_size = 1;      ///< samples of all of them together
  recomputation recompute = recomputation::none;
  int zero = 0;             ///< ZeRO stage
  int microbatches = 0;     ///< of an iteration, if the time has its update and reduction of gradients in it; 0: it has not
  double tokens_per_s = 0;  ///< of each device: those of all together, over the number of devices
  double layer_s = 0;       ///< in its place: seconds of one layer, forward and backward of a microbatch
  std::optional<operator_class> only{};  ///< layer_s is of its operators of this class alone
};

/// The cluster with device::speed such that each anchored device trains its model, or one layer of it, as fast as was measured,
/// forward and backward of one stage, and the update where the anchor tells how many microbatches share it. Classes of operators
/// that have anchors of their own are scaled by these (device::class_speeds). Anchors of a whole layer or model scale the other
/// classes; where there are none, these stay as on the datasheet. Several anchors of the same count at their geometric mean.
/// Exchanges between devices stay as they are. Throws: input_error, naming the device,
/// for an anchor whose device the cluster does not have, whose degrees no nodes of it offer, which has both times or none, whose
/// exchanges alone take longer than was measured, or which is more than a hundred times off; for one of a class where the device
/// is not priced operator by operator, or the layer has none; for one of a model where all classes have their own; and as
/// validate and training_costs. Complexity: some tens of questions to a cost model for each anchor.
[[nodiscard]] cluster anchored(cluster hardware, std::span<const device_anchor> anchors,
                               const training_cost_options& options = {});

/// Anchors of one device that are further off than this do not agree: see anchor_residuals.
inline constexpr double far_residual = 0.05;

/// How far off each anchor is on devices that are as fast as anchored() made them: the time that is priced over the one that was
/// measured, less 1; as good as 0 for the only anchor of a device, or of its class of operators. Throws: as anchored.
[[nodiscard]] std::vector<double> anchor_residuals(const cluster& hardware, std::span<const device_anchor> anchors,
                                                   const training_cost_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/anchor.ipp>
#endif
