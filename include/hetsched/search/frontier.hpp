// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// The plans of which none is both slower and dearer than another, by rising iteration and falling cost per sample; of equals the
/// first one. Requires: evaluated plans whose devices have prices. O(plans log plans).
[[nodiscard]] inline std::vector<plan> cheaper_when_slower(std::vector<plan> plans) {
  std::stable_sort(plans.begin(), plans.end(), [](const plan& a, const plan& b) {
    return std::pair{a.predicted.iteration_s, a.predicted.cost_per_sample.value()} <
           std::pair{b.predicted.iteration_s, b.predicted.cost_per_sample.value()};
  });
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(plans, [&](const plan& p) {
    if (*p.predicted.cost_per_sample >= least) return true;
    least = *p.predicted.cost_per_sample;
    return false;
  });
  return plans;
}

}  // namespace hetsched
