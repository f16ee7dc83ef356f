// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/plan/objective.hpp>

namespace hetsched {

namespace detail {

template <class... Arguments>
[[nodiscard]] std::string print(const char* format, Arguments... arguments) {
  char text[320];
  std::snprintf(text, sizeof text, format, arguments...);
  return text;
}

/// Decimals that leave about three significant digits of a value in [1, 1000).
[[nodiscard]] inline int decimals(double value) { return value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2; }

}  // namespace detail

/// Three significant digits and a unit: 0 s, 12.3 us, 4.56 ms, 789 ms, 1.23 s, 12345 s.
[[nodiscard]] std::string format_seconds(double seconds);

/// Three significant digits and a binary unit: 512 B, 1.50 KiB, 13.2 GiB.
[[nodiscard]] std::string format_bytes(bytes_t bytes);

/// 0.1234 as 12.3 %.
[[nodiscard]] inline std::string format_percent(double share) { return detail::print("%.1f %%", share * 100); }

/// A number with about three significant digits and no unit.
[[nodiscard]] inline std::string format_number(double value) {
  return std::abs(value) < 1e9 ? detail::print("%.*f", detail::decimals(std::abs(value)), value) : detail::print("%.3g", value);
}

/// Money without its currency, four significant digits: 12.34, 0.001234, 1.234e-07.
[[nodiscard]] inline std::string format_money(double amount) { return detail::print("%.4g", amount); }

/// An objective's value: seconds, or money per sample.
[[nodiscard]] inline std::string format_objective(plan_objective objective, double value) {
  return objective == plan_objective::cost ? format_money(value) + " per sample" : format_seconds(value);
}

/// Rows under a heading in aligned columns, two spaces apart. Columns whose heading starts with '>' are aligned to the right.
/// Requires: every row has as many cells as the heading.
[[nodiscard]] std::string format_table(const std::vector<std::string>& heading,
                                       const std::vector<std::vector<std::string>>& rows);

/// Text for HTML and SVG, in elements and in quoted attributes; control characters are dropped.
[[nodiscard]] std::string escape_html(std::string_view text);

/// How far a time lies above a lower bound, as "gap 2.1 %". Where rounding puts it below, the gap is 0.
[[nodiscard]] inline std::string gap_text(double seconds, double bound_s) {
  return "gap " + format_percent(bound_s > 0 ? std::max(0.0, seconds / bound_s - 1) : 0.0);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/format.ipp>
#endif
