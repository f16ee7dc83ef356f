// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_axis.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string tick_text(double time_s, double step, double whole_s) {
  const double scale = whole_s < 1e-3 ? 1e6 : whole_s < 1 ? 1e3 : 1;
  const char* unit = scale == 1e6 ? "us" : scale == 1e3 ? "ms" : "s";
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step * scale) - 1e-9)), 0, 6);
  const double last = step * scale * std::pow(10, digits);
  const bool finer = digits > 0 && std::abs(last - std::round(last)) > 1e-6;
  return print("%.*f %s", digits + (finer ? 1 : 0), std::abs(time_s) * scale, unit);
}

HETSCHED_INLINE double tick_step(double span_s, double pixels_per_s, double pixels) {
  double step = std::pow(10, std::floor(std::log10(span_s)));
  for (const double finer : {0.5, 0.4, 0.5, 0.5, 0.4, 0.5})  // 10, 5, 2, 1 ...
    if (step * finer * pixels_per_s >= pixels)
      step *= finer;
    else
      break;
  while (step * pixels_per_s < pixels && step < span_s) step *= 2;
  return step;
}

}  // namespace hetsched::detail
