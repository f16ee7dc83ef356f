// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hetsched {

/// One bar of a picture.
struct bar {
  std::string label{};
  double value = 0;    ///< at least 0
  std::string text{};  ///< behind the bar; in place of it where the value is 0
  double mark = 0;     ///< a line across the bar, such as a bound; 0: none
};

/// A picture of horizontal bars from 0 on, one below the other. Works in light and dark pages.
[[nodiscard]] std::string bars_svg(const std::vector<bar>& bars, const std::string& title, int width = 860);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/bars_svg.ipp>
#endif
