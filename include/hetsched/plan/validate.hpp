// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// "pipeline 1, stage 3"; of a plan of one pipeline "stage 3".
[[nodiscard]] inline std::string stage_name(const plan& p, std::size_t pipeline, std::size_t stage) {
  return (p.pipelines.size() > 1 ? "pipeline " + std::to_string(pipeline) + ", " : "") + "stage " + std::to_string(stage);
}

/// Throws input_error, naming the stage, unless every pipeline has each of the model's layers once and in order, every stage has
/// devices that the cluster has, as many as its degrees, no device belongs to two stages, and no transfer occupies its boundary
/// for longer than it takes.
/// Complexity: O(stages + devices).
void validate(const cluster& hardware, const plan& p, int layer_count);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/validate.ipp>
#endif
