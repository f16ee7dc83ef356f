// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Layers that the same stages hold, one of every pipeline.
struct gradient_group {
  layer_range layers;
  std::vector<int> stages;  ///< by pipeline
};

/// The layers of a plan, cut where any pipeline cuts them, first to last; none for one pipeline.
/// Throws: input_error unless every pipeline has all layers in order, from 0 to the same last one, and a layer in every stage.
[[nodiscard]] std::vector<gradient_group> gradient_groups(const plan& p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/gradient_groups.ipp>
#endif
