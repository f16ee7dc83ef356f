// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>

namespace hetsched {

HETSCHED_INLINE measured_time median_and_spread(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double share) {
    const double place = share * static_cast<double>(seconds.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const auto above = std::min(below + 1, seconds.size() - 1);
    return seconds[below] + (place - static_cast<double>(below)) * (seconds[above] - seconds[below]);
  };
  return {quantile(0.5), quantile(0.75) - quantile(0.25)};
}

}  // namespace hetsched
