// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_axis.hpp>
#include <hetsched/io/page/distribution_svg.hpp>
#include <hetsched/io/page/frontier_svg.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>

namespace hetsched {

HETSCHED_INLINE std::string distribution_svg(std::vector<double> seconds, double without_noise_s, int width, int height) {
  using detail::print;
  std::sort(seconds.begin(), seconds.end());
  const double left = 70, right = width - 30, top = 40, bottom = height - 56;
  std::string out = print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" class=\"hd\" role=\"img\">\n"
      "<title>Share of iterations that have ended after a time</title>\n",
      width, height, width, height);
  out +=
      "<style>.hd text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hd text.e{text-anchor:end}.hd "
      "text.m{text-anchor:middle}.hd .grid{stroke:#d8dee4;stroke-width:1}.hd .axis{stroke:#6e7781;stroke-width:1}.hd "
      ".line{fill:none;stroke:#0072b2;stroke-width:1.8}.hd .plain{stroke:#d55e00;stroke-width:1.6;stroke-dasharray:6 4}.hd "
      "circle{fill:#0072b2}@media(prefers-color-scheme:dark){.hd text{fill:#d7dce2}.hd .grid{stroke:#30363d}.hd "
      ".line{stroke:#56b4e9}.hd circle{fill:#56b4e9}.hd .plain{stroke:#e69f00}}</style>\n";
  if (seconds.empty()) return out + "</svg>\n";
  const double least = std::min(seconds.front(), without_noise_s), most = std::max(seconds.back(), without_noise_s);
  const double step = detail::round_step(std::max(most - least, most * 1e-3 + 1e-300), 8);
  const double low = std::floor(least / step) * step, high = std::ceil(most / step) * step + (most > least ? 0 : step);
  const auto x_of = [&](double s) { return left + (s - low) / (high - low) * (right - left); };
  const auto y_of = [&](double share) { return bottom - share * (bottom - top); };
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>", left, y_of(share), right, y_of(share),
                 share > 0 ? "grid" : "axis");
    out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"e\">%.0f %%</text>\n", left - 8, y_of(share) + 4, share * 100);
  }
  for (double s = low; s <= high + step / 2; s += step) {
    out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", x_of(s), top, x_of(s), bottom);
    out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">", x_of(s), bottom + 18) + format_seconds(s) + "</text>\n";
  }
  out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">time of an iteration</text>\n", (left + right) / 2, bottom + 42.0);
  out += print("<text x=\"%.1f\" y=\"%.1f\">iterations that have ended</text>\n", 12.0, top - 18);
  out +=
      print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"plain\"><title>without noise: ", x_of(without_noise_s),
            top, x_of(without_noise_s), bottom) +
      format_seconds(without_noise_s) + "</title></line>\n";
  out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">without noise</text>\n", x_of(without_noise_s), top - 6);
  // Points that a picture can tell apart are enough.
  const std::size_t stride = std::max<std::size_t>(seconds.size() / 1000, 1);
  std::string path = print("M%.1f %.1f", x_of(seconds.front()), y_of(0));
  for (std::size_t i = 0; i < seconds.size(); i += stride)
    path += print("L%.1f %.1f", x_of(seconds[i]), y_of(static_cast<double>(i + 1) / static_cast<double>(seconds.size())));
  out += "<path d=\"" + path + print("L%.1f %.1f", x_of(seconds.back()), y_of(1)) + "\" class=\"line\"/>\n";
  for (const double share : {0.5, 0.9, 0.99}) {
    const double s = quantile(seconds, share);
    const auto label = print("%.0f %%: ", share * 100) + format_seconds(s);
    out += print("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", x_of(s), y_of(share)) + label + "</title></circle>";
    const bool room = x_of(s) + 120 < right;
    out += print("<text x=\"%.1f\" y=\"%.1f\"%s>", x_of(s) + (room ? 10 : -10), y_of(share) + (room ? 14 : -8),
                 room ? "" : " class=\"e\"") +
           label + "</text>\n";
  }
  return out + "</svg>\n";
}

}  // namespace hetsched
