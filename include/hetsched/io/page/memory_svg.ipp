// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_axis.hpp>
#include <hetsched/io/page/memory_svg.hpp>

namespace hetsched::detail {

/// Draws memory curves below each other, all on one scale.
class memory_drawing {
 public:
  memory_drawing(const std::vector<memory_curve>& curves, const memory_svg_options& options)
      : curves_(curves), options_(options), end_s_(options.makespan_s) {
    std::size_t longest = 6;
    double capacity = 0;
    for (const auto& c : curves) {
      longest = std::max(longest, std::min<std::size_t>(c.label.size(), 28));
      capacity = std::max(capacity, c.capacity);
      for (const auto& s : c.steps) {
        most_ = std::max(most_, s.bytes);
        if (!(options.makespan_s > 0)) end_s_ = std::max(end_s_, s.time_s);
      }
    }
    // Capacities far above all that is held would press the curves flat: they are told in the text only.
    shows_capacity_ = capacity > 0 && capacity <= 2.5 * most_;
    if (shows_capacity_) most_ = std::max(most_, 1.08 * capacity);  // so that its line is seen
    const std::size_t n = curves.size();
    row_ = n <= 8 ? 40 : n <= 24 ? 24 : n <= 80 ? 13 : 6;
    left_ = options.left > 0 ? options.left : 14 + 6.1 * static_cast<double>(longest);
    right_ = options.width - 190;
    grain_ = 1 + std::floor(static_cast<double>(n) * (right_ - left_) / most_points);
  }

  [[nodiscard]] std::string draw() {
    const double height = top + (row_ + gap) * static_cast<double>(curves_.size()) + 6;
    out_ = print(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" class=\"hm\" "
        "role=\"img\">\n<title>Memory over time</title>\n",
        options_.width, height, options_.width, height);
    out_ +=
        "<style>.hm text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hm .room{fill:#eef0f3}"
        ".hm .held{fill:#0072b2}.hm .over{fill:#b23c00}.hm .cap{stroke:#24292f;stroke-width:1.2;stroke-dasharray:4 3}"
        ".hm .axis{stroke:#6e7781;stroke-width:1}.hm text.e{text-anchor:end}.hm text.m{text-anchor:middle}"
        "@media(prefers-color-scheme:dark){.hm text{fill:#d7dce2}.hm .room{fill:#22272e}.hm .held{fill:#3a86b7}.hm "
        ".cap{stroke:#d7dce2}}</style>\n";
    if (end_s_ > 0) axis();
    double labelled = -100;
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      const double y = top + (row_ + gap) * static_cast<double>(i);
      const bool labels = y - labelled >= 12;
      if (labels) labelled = y;
      curve(curves_[i], y, labels);
    }
    return out_ + "</svg>\n";
  }

 private:
  static constexpr double top = 26;
  static constexpr double gap = 4;
  static constexpr double most_points = 30'000;

  [[nodiscard]] double x_of(double time_s) const {
    return left_ + (end_s_ > 0 ? std::clamp(time_s / end_s_, 0.0, 1.0) : 0.0) * (right_ - left_);
  }
  [[nodiscard]] double height_of(double bytes) const { return most_ > 0 ? bytes / most_ * row_ : 0; }
  [[nodiscard]] std::string amount(double bytes) const {
    return options_.in_bytes ? format_bytes(static_cast<bytes_t>(bytes + 0.5)) : format_number(bytes);
  }

  void axis() {
    const double per_second = (right_ - left_) / end_s_;
    const double step = tick_step(end_s_, per_second, 75);
    out_ += print("<line x1=\"%.1f\" y1=\"20\" x2=\"%.1f\" y2=\"20\" class=\"axis\"/>", left_, right_);
    for (double k = 0; k * step <= end_s_ * (1 + tolerance::rounding); ++k) {
      const double x = x_of(k * step);
      out_ += print("<line x1=\"%.1f\" y1=\"20\" x2=\"%.1f\" y2=\"16\" class=\"axis\"/>", x, x);
      out_ += print("<text x=\"%.1f\" y=\"12\" class=\"m\">", x) + tick_text(k * step, step, end_s_) + "</text>\n";
    }
  }

  void curve(const memory_curve& c, double y, bool labels) {
    double peak = 0;
    for (const auto& s : c.steps) peak = std::max(peak, s.bytes);
    const bool over = c.capacity > 0 && peak > c.capacity;
    if (labels) {
      auto label = c.label.size() > 28 ? c.label.substr(0, 26) + ".." : c.label;
      out_ += print("<text x=\"%.1f\" y=\"%.1f\" class=\"e\">", left_ - 8, y + row_ / 2 + 4) + escape_html(label) + "</text>\n";
      std::string text = "peak " + amount(peak);
      if (c.capacity > 0) text += " of " + amount(c.capacity);
      out_ += print("<text x=\"%.1f\" y=\"%.1f\">", right_ + 8, y + row_ / 2 + 4) + text + "</text>\n";
    }
    out_ +=
        print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"room\"/>\n", left_, y, right_ - left_, row_);
    out_ += print("<path class=\"%s\" d=\"M%.1f %.1f", over ? "over" : "held", left_, y + row_);
    // A point per column of pixels, the most that is held in it: the text stays short however many steps there are.
    double column = -grain_, highest = 0, held = 0;
    const auto flush = [&] {
      if (column >= 0) out_ += print("V%.1fH%.0f", y + row_ - height_of(highest), std::min(column + grain_, right_));
    };
    for (const auto& s : c.steps) {
      const double at = grain_ * std::floor(x_of(s.time_s) / grain_);
      if (at > column) {
        flush();
        if (at > column + grain_) out_ += print("V%.1fH%.0f", y + row_ - height_of(held), at);
        column = at;
        highest = 0;
      }
      held = s.bytes;
      highest = std::max(highest, held);
    }
    flush();
    out_ += print("V%.1fH%.1fV%.1fZ\"/>\n", y + row_ - height_of(held), right_, y + row_);
    if (shows_capacity_ && c.capacity > 0) {
      const double line = y + row_ - height_of(c.capacity);
      out_ += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"cap\"/>\n", left_, line, right_, line);
    }
  }

  const std::vector<memory_curve>& curves_;
  const memory_svg_options& options_;
  double end_s_;
  double most_ = 0;
  bool shows_capacity_ = false;
  double row_ = 0, left_ = 0, right_ = 0;
  double grain_ = 1;  // pixels of a column
  std::string out_;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string memory_svg(const std::vector<memory_curve>& curves, const memory_svg_options& options) {
  return detail::memory_drawing(curves, options).draw();
}

}  // namespace hetsched
