// SPDX-License-Identifier: Apache-2.0
// Whether measured figures can be what they are said to be.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/io.hpp>

namespace command {

/// What is wrong with measured times whose median is hundreds of times what a datasheet lets one expect, or a hundredth: most
/// often their unit. Empty if nothing is. `ratios`: measured over expected; at least one.
[[nodiscard]] inline std::string implausible_times(std::vector<double> ratios) {
  constexpr double most = 100;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  const double slowness = *middle;
  if (slowness < most && slowness * most > 1) return "";
  const bool slow = slowness > 1;
  return "the times are about " + hetsched::format_number(slow ? slowness : 1 / slowness) + " times as " +
         (slow ? "long" : "short") + " as the datasheet says: are they " + (slow ? "micro" : "") +
         "seconds? The column measured_ms is in milliseconds";
}

}  // namespace command
