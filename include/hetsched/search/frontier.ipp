// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/frontier.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<plan> cheaper_when_slower(std::vector<plan> plans) {
  std::stable_sort(plans.begin(), plans.end(), [](const plan& a, const plan& b) {
    return std::pair{a.predicted.iteration_s, a.predicted.cost_per_sample.value()} <
           std::pair{b.predicted.iteration_s, b.predicted.cost_per_sample.value()};
  });
  double least = infinity;
  std::erase_if(plans, [&](const plan& p) {
    if (*p.predicted.cost_per_sample >= least) return true;
    least = *p.predicted.cost_per_sample;
    return false;
  });
  return plans;
}

}  // namespace hetsched
