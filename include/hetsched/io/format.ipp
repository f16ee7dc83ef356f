// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/format.hpp>

namespace hetsched {

HETSCHED_INLINE std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (!(size < 1e12)) return detail::print("%.3g s", seconds);
  const double scale = size < 0.9995e-3 ? 1e6 : size < 0.9995 ? 1e3 : 1;
  const char* unit = scale == 1e6 ? "us" : scale == 1e3 ? "ms" : "s";
  return detail::print("%.*f %s", detail::decimals(size * scale), seconds * scale, unit);
}

HETSCHED_INLINE std::string format_bytes(bytes_t bytes) {
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

HETSCHED_INLINE std::string format_table(const std::vector<std::string>& heading,
                                         const std::vector<std::vector<std::string>>& rows) {
  const auto right = [&](std::size_t c) { return !heading[c].empty() && heading[c][0] == '>'; };
  const auto title = [&](std::size_t c) { return std::string_view(heading[c]).substr(right(c) ? 1 : 0); };
  // Columns on the screen: bytes that do not continue a UTF-8 sequence.
  const auto width_of = [](std::string_view text) {
    return as_size(
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

HETSCHED_INLINE std::string escape_html(std::string_view text) {
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

}  // namespace hetsched
