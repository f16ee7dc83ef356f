// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/home_cases_test.cpp.

#include <cstddef>
#include <span>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// What is settled about where the pipelines of a set hold each layer. Nothing, if empty.
struct layer_homes {
  static constexpr int open = -1;   // nothing is settled
  static constexpr int apart = -2;  // two subclusters or more hold it, so its gradient goes from one to another
  std::vector<int> of;              // by layer: these, or the only subcluster that holds it

  /// Whether a pipeline of such a set may hold the layer in a subcluster.
  [[nodiscard]] bool allow(int layer, int subcluster) const {
    if (of.empty()) return true;
    const int home = at(of, layer);
    return home < 0 || home == subcluster;
  }
  [[nodiscard]] bool allow(const interop_problem& problem, std::span<const interop_stage> stages) const {
    for (const auto& s : stages)
      for (int l = s.layers.first; l < s.layers.last; ++l)
        if (!allow(l, at(problem.placements, s.placement).subcluster)) return false;
    return true;
  }
};

}  // namespace hetsched::detail
