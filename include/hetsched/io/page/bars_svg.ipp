// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/bars_svg.hpp>

namespace hetsched {

HETSCHED_INLINE std::string bars_svg(const std::vector<bar>& bars, const std::string& title, int width) {
  using detail::print;
  constexpr double left = 170, row = 30, top = 40;
  std::size_t longest = 0;
  for (const auto& b : bars)
    if (b.value > 0) longest = std::max(longest, b.text.size());
  const double right = width - 24 - 7.5 * static_cast<double>(longest),
               height = top + row * static_cast<double>(bars.size()) + 10;
  double most = 0;
  for (const auto& b : bars) most = std::max({most, b.value, b.mark});
  const auto x_of = [&](double value) { return left + (right - left) * (most > 0 ? value / most : 0); };
  std::string out = print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" class=\"hb\" "
      "role=\"img\">\n<title>",
      width, height, width, height);
  out +=
      escape_html(title) +
      "</title>\n<style>.hb text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hb "
      "text.e{text-anchor:end}.hb "
      "text.t{font-weight:600}.hb rect{fill:#0072b2}.hb line{stroke:#d55e00;stroke-width:3}@media(prefers-color-scheme:dark){.hb "
      "text{fill:#d7dce2}.hb rect{fill:#56b4e9}.hb line{stroke:#e69f00}}</style>\n";
  out += print("<text x=\"%.0f\" y=\"22\" class=\"t\">", left) + escape_html(title) + "</text>\n";
  double y = top;
  for (const auto& b : bars) {
    out += print("<text x=\"%.0f\" y=\"%.1f\" class=\"e\">", left - 8, y + 16) + escape_html(b.label) + "</text>\n";
    if (b.value > 0)
      out += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"20\"/>\n", left, y + 2, x_of(b.value) - left);
    if (b.mark > 0)
      out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x_of(b.mark), y, x_of(b.mark), y + 24);
    out += print("<text x=\"%.1f\" y=\"%.1f\">", x_of(std::max(b.value, b.mark)) + 8, y + 16) + escape_html(b.text) + "</text>\n";
    y += row;
  }
  return out + "</svg>\n";
}

}  // namespace hetsched
