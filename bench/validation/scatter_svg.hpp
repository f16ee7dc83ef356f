// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../svg.hpp"
#include "cases.hpp"
#include "text.hpp"

namespace validation {

namespace detail {

inline constexpr double plot_left = 62, plot_top = 14, plot_side = 400;

}  // namespace detail

/// Predicted against measured on logarithmic axes of one scale, with the identity and lines 10 and 25 % away from it, groups in
/// colours of their own, after eight of them as squares. Of thousands of points, those that would lie within a growing number of
/// tenths of a pixel of another are left out. Precondition: there is a case, and all values are positive.
[[nodiscard]] inline std::string scatter_svg(const validation_part& part) {
  using namespace detail;
  using bench::escaped, bench::inks;
  double low = 1e300, high = 0;
  std::vector<std::string> groups;
  for (const auto& c : part.cases) {
    low = std::min({low, c.measured, c.predicted});
    high = std::max({high, c.measured, c.predicted});
    if (std::find(groups.begin(), groups.end(), c.group) == groups.end()) groups.push_back(c.group);
  }
  const double first = std::log10(low) - 0.03, last = std::max(std::log10(high) + 0.03, first + 0.3);
  const double scale = plot_side / (last - first), bottom = plot_top + plot_side, right = plot_left + plot_side;
  const auto x = [&](double value) { return plot_left + (std::log10(value) - first) * scale; };
  const auto y = [&](double value) { return bottom - (std::log10(value) - first) * scale; };

  // Points of each group on a grid of tenths of a pixel, coarser until they are few.
  std::vector<std::vector<std::pair<long, long>>> points(groups.size());
  for (long cell = 1;; ++cell) {
    std::size_t count = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::set<std::pair<long, long>> taken;
      points[g].clear();
      for (const auto& c : part.cases) {
        if (c.group != groups[g]) continue;
        const std::pair at{std::lround(10 * x(c.measured)), std::lround(10 * y(c.predicted))};
        if (taken.insert({at.first / cell, at.second / cell}).second) points[g].push_back(at);
      }
      count += points[g].size();
    }
    if (count <= 3000) break;
  }

  std::size_t longest = 12;
  for (const auto& g : groups) longest = std::max(longest, g.size());
  const double width = right + 44 + 7.9 * static_cast<double>(longest);
  const double height = std::max(bottom + 50, plot_top + 100 + 17 * static_cast<double>(groups.size()));
  std::string light, dark;
  for (std::size_t i = 0; i < inks.size(); ++i) {
    light += text(".c%zu{stroke:%s}", i, inks[i].first);
    dark += text(".c%zu{stroke:%s}", i, inks[i].second);
  }
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
           width, height, width, height) +
      "<title>" + escaped(part.title) + ": predicted against measured</title>\n<style>" +
      "text{font:12px sans-serif;fill:#24292f}.page{fill:#fff}.grid{stroke:#d8dee4}.frame{stroke:#8b949e}path,line{fill:none}"
      ".same{stroke:#57606a}.ten{stroke:#57606a;stroke-dasharray:5 3}.far{stroke:#8b949e;stroke-dasharray:1.5 3}" +
      (part.cases.size() > 300 ? ".p{stroke-width:3.4;" : ".p{stroke-width:6;") +
      "stroke-linecap:round;stroke-opacity:.72}.s{stroke-linecap:square}.k{stroke-width:8}" + light +
      "@media(prefers-color-scheme:dark){text{fill:#d7dce2}.page{fill:#0d1117}.grid{stroke:#262c36}" +
      ".frame{stroke:#6e7681}.same,.ten{stroke:#a0aab4}.far{stroke:#6e7681}" + dark + "}</style>\n" +
      text("<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);

  // Decades, and their halves and fifths where there are few.
  const double decades = last - first;
  for (int d = static_cast<int>(std::floor(first)); d <= static_cast<int>(std::ceil(last)); ++d)
    for (const int step : {1, 2, 5}) {
      if (step > 1 && decades > 2.6) continue;
      const double value = step * std::pow(10.0, d), at = x(value);
      if (at < plot_left || at > right || (decades > 8 && d % 2 != 0)) continue;
      const auto label = number(value);
      out +=
          text("<path class=\"grid\" d=\"M%.1f %.1fV%.1fM%.1f %.1fH%.1f\"/>", at, plot_top, bottom, plot_left, y(value), right);
      out += text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>", at, bottom + 16, label.c_str());
      out += text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", plot_left - 6, y(value) + 4, label.c_str());
    }
  out += text("<rect class=\"frame\" fill=\"none\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n", plot_left, plot_top,
              plot_side, plot_side);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    out += text("<path class=\"p c%zu%s\" d=\"", g % inks.size(), g / inks.size() % 2 ? " s" : "");
    // A square needs a length, however small.
    const bool square = g / inks.size() % 2 == 1;
    std::pair<long, long> pen{0, 0};
    for (const auto& [px, py] : points[g]) {
      // Relative moves are shorter.
      const auto tenths = [](long v) { return v % 10 ? text("%.1f", static_cast<double>(v) / 10) : text("%ld", v / 10); };
      const auto dx = tenths(px - pen.first), dy = tenths(py - pen.second);
      out += 'm' + dx + (dy[0] == '-' ? "" : " ") + dy + (square ? "h.1" : "h0");
      pen = {px + square, py};
    }
    out += "\"/>\n";
  }
  // A line of a constant ratio, as far as it lies in the frame.
  const auto ratio_line = [&](double ratio, const char* style) {
    const double shift = std::log10(ratio) * scale, length = plot_side - std::abs(shift);
    if (length > 0)
      out += text("<path class=\"%s\" d=\"M%.1f %.1fl%.1f %.1f\"/>", style, plot_left + std::max(0.0, -shift),
                  bottom - std::max(0.0, shift), length, -length);
  };
  for (const double ratio : {0.75, 1.25}) ratio_line(ratio, "far");
  for (const double ratio : {0.9, 1.1}) ratio_line(ratio, "ten");
  ratio_line(1, "same");

  const auto unit = part.unit.empty() ? "" : ", " + escaped(part.unit);
  out += text("\n<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">measured%s</text>\n", plot_left + plot_side / 2, bottom + 38,
              unit.c_str());
  out += text("<text transform=\"translate(13 %.0f)rotate(-90)\" text-anchor=\"middle\">predicted%s</text>\n",
              plot_top + plot_side / 2, unit.c_str());
  const double key = right + 14;
  double at = plot_top + 10;
  for (const auto& [style, label] : {std::pair{"same", "equal"}, {"ten", "10 % off"}, {"far", "25 % off"}}) {
    out += text("<path class=\"%s\" d=\"M%.0f %.0fh18\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n", style, key, at - 4, key + 25,
                at, label);
    at += 17;
  }
  at += 8;
  for (std::size_t g = 0; g < groups.size(); ++g, at += 17)
    out += text("<path class=\"p k c%zu%s\" d=\"M%.0f %.0fh.1\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n", g % inks.size(),
                g / inks.size() % 2 ? " s" : "", key + 9, at - 4, key + 25, at, escaped(groups[g]).c_str());
  return out + "</svg>\n";
}

}  // namespace validation
