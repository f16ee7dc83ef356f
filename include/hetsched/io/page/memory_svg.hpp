// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/schedule/activation_memory.hpp>

namespace hetsched {

/// A rank's memory over time.
struct memory_curve {
  std::string label;
  std::vector<memory_step> steps;  ///< of memory_over_time
  double capacity = 0;             ///< 0: none to show
};

struct memory_svg_options {
  double makespan_s = 0;  ///< where the curves end; 0: at the last step
  int width = 1240;       ///< pixels
  bool in_bytes = true;   ///< else in numbers without unit
  double left = 0;        ///< pixels for the labels, to stand below a timeline; 0: as long as they are
};

/// Memory over time as SVG: one curve per rank, all on one scale, with its capacity as a dashed line. A curve that exceeds
/// its capacity has another colour. The text stays below about 1 MB.
/// Complexity: O(steps).
[[nodiscard]] std::string memory_svg(const std::vector<memory_curve>& curves, const memory_svg_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/memory_svg.ipp>
#endif
