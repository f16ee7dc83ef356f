// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hetsched {

/// A plan on a frontier of time against money.
struct frontier_point {
  double iteration_s = 0;
  double cost = 0;         ///< money per iteration
  std::string label = {};  ///< told when it is pointed at
  bool chosen = false;     ///< a filled diamond among circles
};

namespace detail {

/// A round step that makes no more than `most` ticks of a span.
[[nodiscard]] double round_step(double span, int most);

}  // namespace detail

/// A picture of plans by the seconds of an iteration (on a logarithmic axis) and its money, joined by steps: for any deadline,
/// the line says what the cheapest known plan costs. Works in light and dark pages.
/// Requires: times above 0.
[[nodiscard]] std::string frontier_svg(std::vector<frontier_point> points, int width = 860, int height = 460);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/frontier_svg.ipp>
#endif
