// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_axis.hpp>
#include <hetsched/io/page/detail/timeline_layout.hpp>
#include <hetsched/io/page/detail/timeline_look.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched::detail {

/// A window of time on a stretch of the picture.
struct time_window {
  double begin_s = 0;
  double end_s = 0;
  double left = 0;
  double right = 0;
  [[nodiscard]] double at(double time_s) const {
    return left + (std::clamp(time_s, begin_s, end_s) - begin_s) / (end_s - begin_s) * (right - left);
  }
};

class timeline_drawing {
 public:
  timeline_drawing(const timeline& t, const timeline_svg_options& options)
      : timeline_(t), options_(options), layout_(t, options.compact), makespan_(layout_.makespan_s) {
    character_ = options.compact ? 5.5 : 6.1;
    std::size_t longest = 6;
    for (int i = 0; i < layout_.ranks; ++i) longest = std::max(longest, label(i).size());
    left_ = 14 + character_ * static_cast<double>(longest);
    right_ = options.width - 16;
    critical_ = options.critical;
    std::sort(critical_.begin(), critical_.end(), earlier);
    choose_windows();
    detailed_ = count_boxes() <= detailed_boxes;
    legend();
    bottom_ = top_ + layout_.height;
  }

  [[nodiscard]] timeline_picture draw() {
    const double height = bottom_ + (layout_.ranks > 12 ? 24 : 8);
    out_ = print(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" class=\"hs%s\" "
        "role=\"img\">\n",
        options_.width, height, options_.width, height, options_.compact ? " hs-c" : "");
    out_ += "<title>Pipeline timeline</title>\n";
    write_style();
    if (options_.page) out_ += "<rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n";
    out_ += legend_;
    lanes();
    if (detailed_)
      boxes();
    else
      strokes();
    axis(top_ - 6, true);
    if (layout_.ranks > 12) axis(bottom_ + 4, false);
    breaks();
    out_ += "</svg>\n";
    return {std::move(out_), shown()};
  }

 private:
  // More boxes than this become bare strokes without a tooltip each.
  static constexpr std::size_t detailed_boxes = 3500;
  // More than this would make the page heavy: windows shrink.
  static constexpr std::size_t most_boxes = 60'000;
  static constexpr double least_pixels_per_period = 7;
  static constexpr double whole_pixels_per_period = 12;
  static constexpr double break_width = 46;

  [[nodiscard]] std::string label(int rank) const {
    const auto i = as_size(rank);
    auto text = i < options_.labels.size() ? options_.labels[i] : (layout_.plain ? "stage " : "rank ") + std::to_string(rank);
    if (text.size() > 28) text = text.substr(0, 26) + "..";
    return text;
  }

  /// Swatches of what occurs, wrapped into lines; tells where the axis begins.
  void legend() {
    double x = left_;
    double y = 5;
    const auto entry = [&](double swatches, std::string_view name) {
      const double room = swatches + 5 + character_ * 0.96 * static_cast<double>(name.size()) + 18;
      if (x + room - 18 > options_.width - 4 && x > left_) {
        x = left_;
        y += 18;
      }
      if (swatches > 0) swatches += 5;
      legend_ += print("<text x=\"%.1f\" y=\"%.1f\">", x + swatches, y + 10);
      legend_ += escape_html(name) + "</text>\n";
      x += room;
      return x - room;
    };
    const auto swatch = [&](double at, double width, const std::string& style) {
      legend_ += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"12\" rx=\"2\" class=\"", at, y, width);
      legend_ += style + "\"/>\n";
    };
    for (std::size_t look = 0; look < timeline_look_count; ++look) {
      if (!layout_.occurs[look]) continue;
      const std::size_t steps = look <= look_of(action_kind::recompute) ? layout_.shades : 1;
      const double width = steps == 1 ? 14 : 9;
      const double at = entry(width * static_cast<double>(steps) + static_cast<double>(steps - 1), timeline_looks[look].legend);
      for (std::size_t k = 0; k < steps; ++k) swatch(at + static_cast<double>(k) * (width + 1), width, look_class(look, k));
    }
    swatch(entry(14, "idle"), 14, "idle");
    if (detailed_ && !critical_.empty()) swatch(entry(14, "critical path"), 14, "idle k");
    if (layout_.shades > 1)
      entry(0, layout_.directions > 1 ? "(lighter: the other direction)"
               : layout_.shades == 2  ? "(lighter: second stage of a rank)"
                                      : "(the lighter, the later the stage)");
    top_ = y + 47;
  }

  void choose_windows() {
    const double room = right_ - left_;
    if (!(makespan_ > 0)) {
      windows_ = {{0, 1, left_, right_}};
      return;
    }
    const double span = std::max(options_.span_s, makespan_);
    const time_window whole{0, makespan_, left_, left_ + room * makespan_ / span};
    const double period = options_.period_s > 0 ? options_.period_s : makespan_ / std::max(1, timeline_.microbatches);
    if (span / period * whole_pixels_per_period <= room) {
      windows_ = {whole};
      if (count_boxes() <= most_boxes) return;
    }
    // How long the ranks wait for their first gradient, and how long they drain after their last forward.
    std::vector<double> first(as_size(layout_.ranks), makespan_), last(first.size(), 0.0);
    for (const auto& a : timeline_.actions) {
      const auto r = as_size(a.rank);
      if (makes_gradient(a.what.kind)) first[r] = std::min(first[r], a.end_s);
      if (a.what.kind == action_kind::forward) last[r] = std::max(last[r], a.start_s);
    }
    double begin = 1.15 * *std::max_element(first.begin(), first.end()) + 4 * period;
    double end = 1.15 * (makespan_ - *std::min_element(last.begin(), last.end())) + 2 * period;
    double middle = 12 * period;
    const double cut_room = room - 2 * break_width;
    const double most = cut_room / least_pixels_per_period * period;
    const auto shrink = [&](double factor) {
      begin *= factor;
      end *= factor;
      middle *= std::max(factor, 0.5);
    };
    if (begin + end + middle > most) shrink(most / (begin + end + middle));
    if (begin + end + 1.5 * middle >= makespan_) {
      windows_ = {whole};
      if (count_boxes() <= most_boxes) return;
    }
    for (int attempt = 0; attempt < 40; ++attempt) {
      if (begin + end + 1.5 * middle < makespan_) {
        const double centre = (begin + makespan_ - end) / 2;
        const double scale = cut_room / (begin + middle + end);
        const double cut = left_ + begin * scale + break_width;
        windows_ = {{0, begin, left_, left_ + begin * scale},
                    {centre - middle / 2, centre + middle / 2, cut, cut + middle * scale},
                    {makespan_ - end, makespan_, right_ - end * scale, right_}};
        if (count_boxes() <= most_boxes) return;
      }
      shrink(0.7);
    }
  }

  [[nodiscard]] static bool visible(const timeline_mark& m, const time_window& w) {
    return m.what->end_s > w.begin_s && m.what->start_s < w.end_s;
  }

  [[nodiscard]] std::size_t count_boxes() const {
    std::size_t count = 0;
    for (const auto& w : windows_)
      count += as_size(std::count_if(layout_.marks.begin(), layout_.marks.end(), [&](const auto& m) { return visible(m, w); }));
    return count;
  }

  [[nodiscard]] std::string shown() const {
    if (windows_.size() == 1) return "The whole iteration is shown.";
    std::string text = "Shown are three windows of the iteration (" + format_seconds(makespan_) +
                       "): its beginning, its steady part and its end; ";
    text += format_seconds(windows_[1].begin_s - windows_[0].end_s) + " and " +
            format_seconds(windows_[2].begin_s - windows_[1].end_s);
    return text + " between them are left out at the zigzag lines.";
  }

  void write_style() {
    out_ +=
        "<style>.hs text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hs-c text{font-size:10px}"
        ".hs path{fill:none;pointer-events:none}.hs .page{fill:#fff}.hs text.t{display:none}"
        ".hs .axis,.hs path.break{stroke:#6e7781;stroke-width:1}"
        ".hs text.n{font-size:10px;text-anchor:middle;pointer-events:none}.hs-c text.n{font-size:9px}"
        ".hs text.m{text-anchor:middle}.hs text.e{text-anchor:end}";
    out_ += print(".hs .idle{fill:#%06x}", idle_light);
    std::string dark = "@media(prefers-color-scheme:dark){.hs text{fill:#d7dce2}.hs .page{fill:#0d1117}" +
                       print(".hs .idle{fill:#%06x}", idle_dark);
    for (std::size_t look = 0; look < timeline_look_count; ++look) {
      if (!layout_.occurs[look]) continue;
      const std::size_t steps = look <= look_of(action_kind::recompute) ? layout_.shades : 1;
      for (std::size_t k = 0; k < steps; ++k) {
        out_ += look_rule(look, k, false);
        if (timeline_looks[look].dark != timeline_looks[look].light) dark += look_rule(look, k, true);
      }
    }
    out_ += ".hs rect.k{stroke:#1b1f24;stroke-width:1.3}" + dark + ".hs rect.k{stroke:#fff;stroke-width:1.3}}</style>\n";
  }

  void text(double x, double y, std::string_view kind, std::string_view content) {
    out_ += print("<text x=\"%.1f\" y=\"%.1f\" class=\"", x, y);
    out_ += kind;
    out_ += "\">";
    out_ += escape_html(content);
    out_ += "</text>\n";
  }

  void lanes() {
    std::vector<double> busy(layout_.lane_top.size(), 0.0);
    for (const auto& m : layout_.marks)
      if (is_compute(m.what->what.kind)) at(busy, m.what->rank) += (m.what->end_s - m.what->start_s) * m.height / layout_.lane;
    double labelled = -100;
    for (int i = 0; i < layout_.ranks; ++i) {
      const double y = top_ + at(layout_.lane_top, i);
      if (y - labelled >= 12) {
        text(left_ - 8, y + layout_.lane / 2 + 4, "e", label(i));
        labelled = y;
      }
      const double share = makespan_ > 0 ? at(busy, i) / makespan_ : 0;
      for (const auto& w : windows_) {
        out_ += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"idle\"><title>", w.left, y,
                      w.right - w.left, layout_.lane);
        out_ += escape_html(label(i)) + ": computes " + format_percent(share) + " of the iteration</title></rect>\n";
      }
    }
  }

  void boxes() {
    for (const auto& w : windows_) {
      // Numbers only where the longest of the window fits, so that they do not come and go.
      int highest = 0;
      for (const auto& m : layout_.marks)
        if (visible(m, w)) highest = std::max(highest, m.what->what.microbatch);
      const double digit = options_.compact ? 5.4 : 6.5;
      const double number_width = digit * static_cast<double>(std::to_string(highest).size()) + (options_.compact ? 2 : 3);
      for (const auto& m : layout_.marks)
        if (visible(m, w)) box(m, w, number_width);
    }
  }

  void box(const timeline_mark& m, const time_window& w, double number_width) {
    const auto& a = *m.what;
    const double x = w.at(a.start_s);
    const double width = w.at(a.end_s) - x;
    const double gap = width > 3 ? 0.7 : 0;
    out_ += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"><title>", x, top_ + m.top,
                  std::max(width - gap, 0.3), m.height - (m.height < layout_.lane && m.height > layout_.strip ? 0.4 : 0),
                  (look_class(m.look, m.step) + (is_critical(a) ? " k" : "")).c_str());
    out_ += tooltip(a) + "</title></rect>\n";
    if (!is_compute(a.what.kind)) return;
    const double size = options_.compact ? 9 : 10, fits = std::min({1.0, m.height / 9.5, width / number_width});
    if (fits < 1 && !(options_.zooms && fits > 0.1)) return;
    const auto look = "n " + look_class(m.look, m.step) +
                      (fits < 1 ? print(" t\" style=\"font-size:%.1fpx", std::max(size * fits, 0.5)) : std::string());
    text(x + (width - gap) / 2, top_ + m.top + m.height / 2 + 0.36 * size * fits, look, std::to_string(a.what.microbatch));
  }

  [[nodiscard]] static bool earlier(const timed_action& a, const timed_action& b) {
    return std::tie(a.rank, a.start_s, a.end_s) < std::tie(b.rank, b.start_s, b.end_s);
  }

  [[nodiscard]] bool is_critical(const timed_action& a) const {
    const auto [first, last] = std::equal_range(critical_.begin(), critical_.end(), a, earlier);
    return std::find(first, last, a) != last;
  }

  [[nodiscard]] std::string tooltip(const timed_action& a) const {
    std::string text = timeline_looks[look_of(a.what.kind)].name;
    if (a.what.microbatch >= 0) text += " of microbatch " + std::to_string(a.what.microbatch);
    const std::string place = layout_.plain ? "stage " : "rank ";
    if (is_transfer(a.what.kind)) {
      text += ", " + place + std::to_string(a.rank) + " to " + std::to_string(a.peer);
      constexpr const char* phases[] = {"", " (device to host)", " (network)", " (host to device)"};
      text += phases[phase_of(a.what.kind) + 1];
    } else {
      text += ", stage " + std::to_string(a.what.stage);
      if (!layout_.plain) text += " on rank " + std::to_string(a.rank);
    }
    if (a.what.joined) text += ", joined with the one before";
    return text + ": " + format_seconds(a.start_s) + " to " + format_seconds(a.end_s) + " (" +
           format_seconds(a.end_s - a.start_s) + ")";
  }

  /// Boxes as pieces of thick strokes: those of one row and look share a path.
  void strokes() {
    std::stable_sort(layout_.marks.begin(), layout_.marks.end(), [](const timeline_mark& a, const timeline_mark& b) {
      return std::tie(a.top, a.height, a.look, a.step) < std::tie(b.top, b.height, b.look, b.step);
    });
    for (const auto& w : windows_) {
      const timeline_mark* previous = nullptr;
      double at = 0;  // where the stroke being drawn ends, as rounded in the text
      for (const auto& m : layout_.marks) {
        if (!visible(m, w)) continue;
        const double x = w.at(m.what->start_s);
        const double width = std::max(w.at(m.what->end_s) - x, 0.3);
        if (previous != nullptr && std::tie(previous->top, previous->height, previous->look, previous->step) ==
                                       std::tie(m.top, m.height, m.look, m.step)) {
          out_ += print("m%.1f 0", x - at);
          at += std::round((x - at) * 10) / 10;
        } else {
          if (previous != nullptr) out_ += "\"/>\n";
          out_ += print("<path class=\"%s\" stroke-width=\"%.1f\" d=\"M%.1f %.2f", look_class(m.look, m.step).c_str(), m.height,
                        x, top_ + m.top + m.height / 2);
          at = std::round(x * 10) / 10;
        }
        const double piece = width > 2 ? width - 0.5 : width;
        out_ += print("h%.1f", piece);
        at += std::round(piece * 10) / 10;
        previous = &m;
      }
      if (previous != nullptr) out_ += "\"/>\n";
    }
  }

  void axis(double y, bool above) {
    for (const auto& w : windows_) {
      const double span = w.end_s - w.begin_s;
      const double step = tick_step(span, (w.right - w.left) / span, options_.compact ? 62 : 75);
      out_ += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>", w.left, y, w.right, y);
      for (double k = std::ceil(w.begin_s / step - 1e-9); k * step <= w.end_s * (1 + tolerance::rounding); ++k) {
        const double x = w.at(k * step);
        out_ += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>", x, y, x, above ? y - 4 : y + 4);
        const double margin = w.begin_s > 0 ? 16 : -1;
        if (x >= w.left + margin && x <= options_.width - 24.0)
          text(x, above ? y - 7 : y + 15, "m", tick_text(k * step, step, makespan_));
      }
      out_ += "\n";
    }
  }

  void breaks() {
    for (std::size_t i = 1; i < windows_.size(); ++i) {
      const double centre = (windows_[i - 1].right + windows_[i].left) / 2;
      for (const double x : {centre - 4, centre + 4}) {
        out_ += print("<path class=\"break\" d=\"M%.1f %.1f", x, top_ - 6);
        const int teeth = static_cast<int>((bottom_ - top_) / 8);
        for (int k = 0; k < teeth; ++k) out_ += k % 2 == 0 ? "l4 8" : "l-4 8";
        out_ += "\"/>\n";
      }
      text(centre, top_ - 13, "m", "...");
    }
  }

  const timeline& timeline_;
  const timeline_svg_options& options_;
  timeline_layout layout_;
  double makespan_;
  std::string out_, legend_;
  std::vector<time_window> windows_;
  std::vector<timed_action> critical_;  // sorted
  bool detailed_ = true;
  double character_ = 0;  // width of a letter, about
  double left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE timeline_picture draw_timeline(const timeline& t, const timeline_svg_options& options) {
  return detail::timeline_drawing(t, options).draw();
}

}  // namespace hetsched
