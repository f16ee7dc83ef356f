// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/units.hpp>

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
[[nodiscard]] inline std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (!(size < 1e12)) return detail::print("%.3g s", seconds);
  const double scale = size < 0.9995e-3 ? 1e6 : size < 0.9995 ? 1e3 : 1;
  const char* unit = scale == 1e6 ? "us" : scale == 1e3 ? "ms" : "s";
  return detail::print("%.*f %s", detail::decimals(size * scale), seconds * scale, unit);
}

/// Three significant digits and a binary unit: 512 B, 1.50 KiB, 13.2 GiB.
[[nodiscard]] inline std::string format_bytes(bytes_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? detail::print("%.0f B", value)
                   : detail::print("%.*f %s", detail::decimals(std::abs(value)), value, units[unit]);
}

/// 0.1234 as 12.3 %.
[[nodiscard]] inline std::string format_percent(double share) { return detail::print("%.1f %%", share * 100); }

/// A number with about three significant digits and no unit.
[[nodiscard]] inline std::string format_number(double value) {
  return std::abs(value) < 1e9 ? detail::print("%.*f", detail::decimals(std::abs(value)), value) : detail::print("%.3g", value);
}

/// Money without its currency, four significant digits: 12.34, 0.001234, 1.234e-07.
[[nodiscard]] inline std::string format_money(double amount) { return detail::print("%.4g", amount); }

/// An objective's value, by the objective's name: seconds, or money per sample.
[[nodiscard]] inline std::string format_objective(std::string_view objective, double value) {
  return objective == "cost" ? format_money(value) + " per sample" : format_seconds(value);
}

/// Rows under a heading in aligned columns, two spaces apart. Columns whose heading starts with '>' are aligned to the right.
/// Requires: every row has as many cells as the heading.
[[nodiscard]] inline std::string format_table(const std::vector<std::string>& heading,
                                              const std::vector<std::vector<std::string>>& rows) {
  const auto right = [&](std::size_t c) { return !heading[c].empty() && heading[c][0] == '>'; };
  const auto title = [&](std::size_t c) { return std::string_view(heading[c]).substr(right(c) ? 1 : 0); };
  // Columns on the screen: bytes that do not continue a UTF-8 sequence.
  const auto width_of = [](std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
  };
  std::vector<std::size_t> width(heading.size());
  for (std::size_t c = 0; c < heading.size(); ++c) {
    width[c] = width_of(title(c));
    for (const auto& row : rows) width[c] = std::max(width[c], width_of(row[c]));
  }
  std::string out;
  const auto line = [&](auto cell) {
    std::string text;
    for (std::size_t c = 0; c < heading.size(); ++c) {
      const std::string_view value = cell(c);
      const std::string padding(width[c] - width_of(value), ' ');
      if (c > 0) text += "  ";
      if (right(c)) text += padding;
      text += value;
      if (!right(c)) text += padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  };
  line([&](std::size_t c) { return title(c); });
  for (const auto& row : rows) line([&](std::size_t c) { return std::string_view(row[c]); });
  return out;
}

/// Text for HTML and SVG, in elements and in quoted attributes; control characters are dropped.
[[nodiscard]] inline std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

/// How far a time lies above a lower bound, as "gap 2.1 %". Where rounding puts it below, the gap is 0.
[[nodiscard]] inline std::string gap_text(double seconds, double bound_s) {
  return "gap " + format_percent(bound_s > 0 ? std::max(0.0, seconds / bound_s - 1) : 0.0);
}

}  // namespace hetsched
