// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hetsched {

/// A picture of how many of some iterations have ended after so many seconds, with the median, 90 % and 99 %, and the time of one
/// without noise. Works in light and dark pages.
[[nodiscard]] std::string distribution_svg(std::vector<double> seconds, double without_noise_s, int width = 860,
                                           int height = 420);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/distribution_svg.ipp>
#endif
