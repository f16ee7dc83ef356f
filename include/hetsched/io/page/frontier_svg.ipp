// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_axis.hpp>
#include <hetsched/io/page/frontier_svg.hpp>

namespace hetsched::detail {

HETSCHED_INLINE double round_step(double span, int most) {
  double step = std::pow(10, std::floor(std::log10(span / most)));
  for (const double up : {2.0, 2.5, 2.0})
    if (span / step > most) step *= up;
  return step;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string frontier_svg(std::vector<frontier_point> points, int width, int height) {
  using detail::print;
  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.iteration_s < b.iteration_s; });
  const double left = 96, right = width - 30, top = 40, bottom = height - 56;
  std::string out = print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" class=\"hf\" role=\"img\">\n"
      "<title>Time of an iteration against its cost</title>\n",
      width, height, width, height);
  out +=
      "<style>.hf text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hf text.e{text-anchor:end}.hf "
      "text.m{text-anchor:middle}.hf .grid{stroke:#d8dee4;stroke-width:1}.hf .axis{stroke:#6e7781;stroke-width:1}.hf "
      ".line{fill:none;stroke:#0072b2;stroke-width:1.6}.hf circle{fill:#fff;stroke:#0072b2;stroke-width:2}.hf "
      ".chosen{fill:#d55e00}@media(prefers-color-scheme:dark){.hf text{fill:#d7dce2}.hf "
      ".grid{stroke:#30363d}.hf .line,.hf circle{stroke:#56b4e9}.hf circle{fill:#0d1117}.hf "
      ".chosen{fill:#e69f00}}</style>\n";
  if (points.empty()) return out + "</svg>\n";
  double first_s = points.front().iteration_s, last_s = points.back().iteration_s, least = points.front().cost, most = 0;
  for (const auto& p : points) {
    least = std::min(least, p.cost);
    most = std::max(most, p.cost);
  }
  first_s /= 1.1;
  last_s *= 1.1;
  const double step = detail::round_step(std::max(most - least, most * 0.1 + 1e-300), 7);
  const double low = std::floor(least / step) * step - (least < most ? 0 : step),
               high = std::ceil(most / step) * step + step * 0.2;
  const auto x_of = [&](double s) { return left + std::log(s / first_s) / std::log(last_s / first_s) * (right - left); };
  const auto y_of = [&](double cost) { return bottom - (cost - low) / (high - low) * (bottom - top); };
  for (double cost = low; cost <= high; cost += step) {
    if (cost < -step / 2) continue;
    out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", left, y_of(cost), right, y_of(cost));
    out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"e\">", left - 8, y_of(cost) + 4) +
           format_money(std::abs(cost) < step / 1e6 ? 0 : cost) + "</text>\n";
  }
  // 1, 2 and 5 of every power of ten; with few of these inside, every whole one.
  double drawn = -1e9;
  for (double power = std::pow(10, std::floor(std::log10(first_s))); power <= last_s; power *= 10)
    for (int digit = 1; digit < 10; ++digit) {
      const double s = power * digit, x = x_of(s);
      const bool round = digit == 1 || digit == 2 || digit == 5;
      if (s < first_s || s > last_s || (!round && last_s / first_s > 8) || x - drawn < 46) continue;
      drawn = x;
      out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", x, top, x, bottom);
      out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">", x, bottom + 18) + print("%g", s) + "</text>\n";
    }
  out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>\n", left, bottom, right, bottom);
  out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">seconds per iteration</text>\n", (left + right) / 2, bottom + 42.0);
  out += print("<text x=\"%.1f\" y=\"%.1f\">cost per iteration</text>\n", 12.0, top - 18);
  std::string path;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double x = x_of(points[i].iteration_s), y = y_of(points[i].cost);
    path += i == 0 ? print("M%.1f %.1f", x, y) : print("H%.1fV%.1f", x, y);
  }
  out += "<path d=\"" + path + print("H%.1f", right) + "\" class=\"line\"/>\n";
  for (const auto& p : points) {
    const double x = x_of(p.iteration_s), y = y_of(p.cost);
    out += p.chosen ? print("<path class=\"chosen\" d=\"M%.1f %.1fl8 8l-8 8l-8 -8z\"><title>", x, y - 8)
                    : print("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>", x, y);
    out += format_seconds(p.iteration_s) + ", " + format_money(p.cost) + " per iteration" +
           (p.label.empty() ? "" : ": " + escape_html(p.label)) + (p.chosen ? "</title></path>\n" : "</title></circle>\n");
  }
  return out + "</svg>\n";
}

}  // namespace hetsched
