// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
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
/// Requires: every pipeline has all layers in order.
[[nodiscard]] inline std::vector<gradient_group> gradient_groups(const plan& p) {
  std::vector<gradient_group> groups;
  if (p.pipelines.size() < 2) return groups;
  std::vector<int> at(p.pipelines.size(), 0);
  const int layers = p.pipelines.front().stages.back().layers.last;
  for (int first = 0; first < layers;) {
    int last = layers;
    for (std::size_t l = 0; l < at.size(); ++l)
      last = std::min(last, p.pipelines[l].stages[static_cast<std::size_t>(at[l])].layers.last);
    groups.push_back({{first, last}, at});
    for (std::size_t l = 0; l < at.size(); ++l)
      if (p.pipelines[l].stages[static_cast<std::size_t>(at[l])].layers.last == last) ++at[l];
    first = last;
  }
  return groups;
}

}  // namespace hetsched
