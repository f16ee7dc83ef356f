// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

struct timeline_svg_options {
  std::vector<std::string> labels;  ///< one per stage; empty: "stage i"
  double period_s = 0;              ///< steady time per microbatch, sets the scale; 0: the makespan over the microbatches
  int width = 1240;                 ///< pixels
};

/// A picture of a timeline, and what part of the timeline it shows.
struct timeline_picture {
  std::string svg;
  std::string shown;  ///< a sentence
};

namespace detail {

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
  timeline_drawing(const timeline& t, const timeline_svg_options& options) : timeline_(t), options_(options) {
    for (const auto& a : t.actions) {
      makespan_ = std::max(makespan_, a.end_s);
      transfers_ = transfers_ || (is_transfer(a.kind) && a.end_s > a.start_s);
    }
    measure();
    choose_windows();
  }

  [[nodiscard]] timeline_picture draw() {
    const double bottom = top_ + pitch_ * timeline_.stages;
    const double height = bottom + 24;
    out_ = print("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" class=\"hs\" role=\"img\">\n",
                 options_.width, height, options_.width, height);
    out_ += "<title>Pipeline timeline</title>\n";
    out_ += style;
    legend();
    lanes();
    boxes();
    axis(top_ - 6, true);
    if (timeline_.stages > 12) axis(bottom + 4, false);
    breaks(bottom);
    out_ += "</svg>\n";
    return {std::move(out_), shown()};
  }

 private:
  static constexpr std::string_view style =
      "<style>.hs text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}"
      ".hs .fill-f{fill:#0072b2}.hs .fill-b{fill:#e69f00}.hs .fill-a{fill:#009e73}.hs .fill-g{fill:#cc79a7}.hs .fill-i{fill:#e4e7eb}"
      ".hs path{fill:none;pointer-events:none}"
      ".hs .f{stroke:#0072b2}.hs .b{stroke:#e69f00}.hs .a{stroke:#009e73}.hs .g{stroke:#cc79a7}"
      ".hs .axis{stroke:#6e7781;stroke-width:1}.hs .break{stroke:#6e7781;stroke-width:1.2}"
      ".hs text.n{font-size:10px;text-anchor:middle;pointer-events:none}.hs text.nf{fill:#fff}.hs text.nb{fill:#1b1f24}"
      ".hs text.m{text-anchor:middle}.hs text.e{text-anchor:end}"
      "@media(prefers-color-scheme:dark){.hs text{fill:#d7dce2}.hs .fill-i{fill:#2f353d}.hs text.nb{fill:#1b1f24}}</style>\n";

  // More boxes than this become bare strokes without a tooltip each.
  static constexpr std::size_t detailed_boxes = 3500;
  // More than this would make the page heavy: windows shrink.
  static constexpr std::size_t most_boxes = 60'000;
  static constexpr double least_pixels_per_period = 7;
  static constexpr double whole_pixels_per_period = 12;
  static constexpr double break_width = 46;

  static bool is_transfer(action_kind kind) { return kind == action_kind::send_activation || kind == action_kind::send_gradient; }

  void measure() {
    const int s = timeline_.stages;
    lane_ = s <= 8 ? 30 : s <= 24 ? 20 : s <= 80 ? 13 : s <= 200 ? 8 : 4;
    strip_ = !transfers_ ? 0 : s <= 8 ? 6 : s <= 24 ? 4 : s <= 80 ? 2.5 : s <= 200 ? 1.5 : 1;
    pitch_ = lane_ + 2 * strip_ + (s <= 24 ? 6 : s <= 80 ? 3 : 2);
    std::size_t longest = 6;
    for (int i = 0; i < s; ++i) longest = std::max(longest, label(i).size());
    left_ = 14 + 6.2 * static_cast<double>(std::min<std::size_t>(longest, 28));
    right_ = options_.width - 16;
  }

  [[nodiscard]] std::string label(int stage) const {
    const auto i = static_cast<std::size_t>(stage);
    auto text = i < options_.labels.size() ? options_.labels[i] : "stage " + std::to_string(stage);
    if (text.size() > 28) text = text.substr(0, 26) + "..";
    return text;
  }

  void choose_windows() {
    if (!(makespan_ > 0)) {
      windows_ = {{0, 1, left_, right_}};
      return;
    }
    const double period = options_.period_s > 0 ? options_.period_s : makespan_ / std::max(1, timeline_.microbatches);
    if (makespan_ / period * whole_pixels_per_period <= right_ - left_) {
      windows_ = {{0, makespan_, left_, right_}};
      if (count_boxes() <= most_boxes) return;
    }
    // How long the first stage waits for its first gradient, and how long it drains after its last forward.
    double fill = makespan_;
    double drain = makespan_;
    for (const auto& a : timeline_.actions) {
      if (a.place != 0) continue;
      if (a.kind == action_kind::backward) fill = std::min(fill, a.end_s);
      if (a.kind == action_kind::forward) drain = std::min(drain, makespan_ - a.start_s);
    }
    double begin = 1.15 * fill + 4 * period;
    double end = 1.15 * drain + 2 * period;
    double middle = 12 * period;
    const double room = right_ - left_ - 2 * break_width;
    const double most = room / least_pixels_per_period * period;
    const auto shrink = [&](double factor) {
      begin *= factor;
      end *= factor;
      middle *= std::max(factor, 0.5);
    };
    if (begin + end + middle > most) shrink(most / (begin + end + middle));
    if (begin + end + 1.5 * middle >= makespan_) {
      windows_ = {{0, makespan_, left_, right_}};
      if (count_boxes() <= most_boxes) return;
    }
    for (int attempt = 0; attempt < 40; ++attempt) {
      if (begin + end + 1.5 * middle < makespan_) {
        const double centre = (begin + makespan_ - end) / 2;
        const double scale = room / (begin + middle + end);
        windows_ = {{0, begin, left_, left_ + begin * scale},
                    {centre - middle / 2, centre + middle / 2, left_ + begin * scale + break_width, left_ + (begin + middle) * scale + break_width},
                    {makespan_ - end, makespan_, right_ - end * scale, right_}};
        if (count_boxes() <= most_boxes) return;
      }
      shrink(0.7);
    }
  }

  [[nodiscard]] static bool visible(const timed_action& a, const time_window& w) {
    return a.end_s > a.start_s && a.end_s > w.begin_s && a.start_s < w.end_s;
  }

  [[nodiscard]] std::size_t count_boxes() const {
    std::size_t count = 0;
    for (const auto& w : windows_)
      count += static_cast<std::size_t>(
          std::count_if(timeline_.actions.begin(), timeline_.actions.end(), [&](const auto& a) { return visible(a, w); }));
    return count;
  }

  [[nodiscard]] std::string shown() const {
    if (windows_.size() == 1) return "The whole iteration is shown.";
    std::string text = "Shown are three windows of the iteration (" + format_seconds(makespan_) + "): its beginning, its steady part and its end; ";
    text += format_seconds(windows_[1].begin_s - windows_[0].end_s) + " and " + format_seconds(windows_[2].begin_s - windows_[1].end_s);
    return text + " between them are left out at the zigzag lines.";
  }

  void text(double x, double y, std::string_view kind, std::string_view content) {
    out_ += print("<text x=\"%.1f\" y=\"%.1f\" class=\"", x, y);
    out_ += kind;
    out_ += "\">";
    out_ += escape_html(content);
    out_ += "</text>\n";
  }

  void legend() {
    constexpr std::string_view names[] = {"forward", "backward", "activation on its way", "gradient on its way", "idle"};
    constexpr const char* classes[] = {"fill-f", "fill-b", "fill-a", "fill-g", "fill-i"};
    double x = left_;
    for (std::size_t i = 0; i < std::size(names); ++i) {
      if (!transfers_ && (i == 2 || i == 3)) continue;
      out_ += print("<rect x=\"%.1f\" y=\"5\" width=\"14\" height=\"12\" rx=\"2\" class=\"%s\"/>", x, classes[i]);
      text(x + 19, 15, "", names[i]);
      x += 19 + 5.9 * static_cast<double>(names[i].size()) + 18;
    }
  }

  [[nodiscard]] double lane_top(int stage) const { return top_ + pitch_ * stage; }

  void lanes() {
    std::vector<double> busy(static_cast<std::size_t>(timeline_.stages), 0.0);
    for (const auto& a : timeline_.actions)
      if (!is_transfer(a.kind)) busy[static_cast<std::size_t>(a.place)] += a.end_s - a.start_s;
    const int every = std::max(1, static_cast<int>(std::ceil(12 / pitch_)));
    for (int i = 0; i < timeline_.stages; ++i) {
      const double y = lane_top(i);
      if (i % every == 0) text(left_ - 8, y + lane_ / 2 + 4, "e", label(i));
      const double share = makespan_ > 0 ? busy[static_cast<std::size_t>(i)] / makespan_ : 0;
      for (const auto& w : windows_) {
        out_ += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"fill-i\"><title>", w.left, y, w.right - w.left, lane_);
        out_ += escape_html(label(i)) + ": computes " + format_percent(share) + " of the iteration</title></rect>\n";
      }
    }
  }

  /// Vertical place of an action: lanes for computations, between them one strip for activations and one for gradients.
  [[nodiscard]] double middle_of(const timed_action& a) const {
    const double y = lane_top(a.place);
    if (a.kind == action_kind::send_activation) return y + lane_ + (pitch_ - lane_) / 2 - strip_ / 2;
    if (a.kind == action_kind::send_gradient) return y + lane_ + (pitch_ - lane_) / 2 + strip_ / 2;
    return y + lane_ / 2;
  }

  void boxes() {
    const bool detailed = count_boxes() <= detailed_boxes;
    for (const auto& w : windows_) {
      if (detailed) {
        // Numbers only where the longest of the window fits, so that they do not come and go.
        int highest = 0;
        for (const auto& a : timeline_.actions)
          if (visible(a, w)) highest = std::max(highest, a.microbatch);
        number_width_ = 6.5 * static_cast<double>(std::to_string(highest).size()) + 3;
        for (const auto& a : timeline_.actions)
          if (visible(a, w)) box(a, w);
        continue;
      }
      const timed_action* previous = nullptr;
      for (const auto& a : timeline_.actions) {
        if (!visible(a, w)) continue;
        const bool same = previous != nullptr && previous->place == a.place && previous->kind == a.kind && previous->start_s <= a.start_s;
        stroke(a, w, same);
        previous = &a;
      }
      if (previous != nullptr) out_ += "\"/>\n";
    }
  }

  [[nodiscard]] static std::size_t index(action_kind kind) { return static_cast<std::size_t>(kind); }

  void box(const timed_action& a, const time_window& w) {
    constexpr const char* letters = "fbag";
    constexpr const char* names[] = {"forward", "backward", "activation", "gradient"};
    const double x = w.at(a.start_s);
    const double width = w.at(a.end_s) - x;
    const double height = is_transfer(a.kind) ? strip_ : lane_;
    const double gap = width > 3 ? 0.7 : 0;
    const double y = middle_of(a);
    out_ += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"fill-%c\"><title>", x, y - height / 2,
                  std::max(width - gap, 0.3), height, letters[index(a.kind)]);
    const std::string where =
        a.kind == action_kind::send_activation ? "stage " + std::to_string(a.place) + " to " + std::to_string(a.place + 1)
        : a.kind == action_kind::send_gradient ? "stage " + std::to_string(a.place + 1) + " to " + std::to_string(a.place)
                                               : "stage " + std::to_string(a.place);
    out_ += std::string(names[index(a.kind)]) + " of microbatch " + std::to_string(a.microbatch) + ", " + where + ": " +
            format_seconds(a.start_s) + " to " + format_seconds(a.end_s) + " (" + format_seconds(a.end_s - a.start_s) + ")</title></rect>\n";
    if (!is_transfer(a.kind) && lane_ >= 13 && width >= number_width_)
      text(x + width / 2, y + 3.6, a.kind == action_kind::forward ? "n nf" : "n nb", std::to_string(a.microbatch));
  }

  /// A box as a piece of a thick stroke; pieces of one lane and kind share a path.
  void stroke(const timed_action& a, const time_window& w, bool go_on) {
    constexpr const char* letters = "fbag";
    const double x = w.at(a.start_s);
    const double width = std::max(w.at(a.end_s) - x, 0.3);
    if (!go_on) {
      if (!out_.empty() && out_.back() != '\n') out_ += "\"/>\n";
      out_ += print("<path class=\"%c\" stroke-width=\"%.1f\" d=\"M%.1f %.1f", letters[index(a.kind)], is_transfer(a.kind) ? strip_ : lane_, x,
                    middle_of(a));
      at_ = std::round(x * 10) / 10;
    } else {
      out_ += print("m%.1f 0", x - at_);
      at_ += std::round((x - at_) * 10) / 10;
    }
    const double piece = width > 2 ? width - 0.5 : width;
    out_ += print("h%.1f", piece);
    at_ += std::round(piece * 10) / 10;
  }

  void axis(double y, bool above) {
    for (const auto& w : windows_) {
      const double span = w.end_s - w.begin_s;
      double step = std::pow(10, std::floor(std::log10(span)));
      const auto pixels = [&](double s) { return s / span * (w.right - w.left); };
      for (const double finer : {0.5, 0.4, 0.5, 0.5, 0.4, 0.5})  // 10, 5, 2, 1 ...
        if (pixels(step * finer) >= 75) step *= finer;
        else break;
      while (pixels(step) < 75 && step < span) step *= 2;
      out_ += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>", w.left, y, w.right, y);
      for (double k = std::ceil(w.begin_s / step - 1e-9); k * step <= w.end_s * (1 + 1e-12); ++k) {
        const double x = w.at(k * step);
        out_ += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>", x, y, x, above ? y - 4 : y + 4);
        const double margin = w.begin_s > 0 ? 16 : -1;
        if (x >= w.left + margin && x <= w.right - 8) text(x, above ? y - 7 : y + 15, "m", tick(k * step, step));
      }
    }
  }

  [[nodiscard]] std::string tick(double time_s, double step) const {
    const double scale = makespan_ < 1e-3 ? 1e6 : makespan_ < 1 ? 1e3 : 1;
    const char* unit = scale == 1e6 ? "us" : scale == 1e3 ? "ms" : "s";
    const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step * scale) - 1e-9)), 0, 6);
    const bool finer = digits > 0 && std::abs(step * scale * std::pow(10, digits) - std::round(step * scale * std::pow(10, digits))) > 1e-6;
    return print("%.*f %s", digits + (finer ? 1 : 0), std::abs(time_s) * scale, unit);
  }

  void breaks(double bottom) {
    for (std::size_t i = 1; i < windows_.size(); ++i) {
      const double centre = (windows_[i - 1].right + windows_[i].left) / 2;
      for (const double x : {centre - 4, centre + 4}) {
        out_ += print("<path class=\"break\" d=\"M%.1f %.1f", x, top_ - 6);
        const int teeth = static_cast<int>((bottom - top_) / 8);
        for (int k = 0; k < teeth; ++k) out_ += k % 2 == 0 ? "l4 8" : "l-4 8";
        out_ += "\"/>\n";
      }
      text(centre, top_ - 13, "m", "...");
    }
  }

  const timeline& timeline_;
  const timeline_svg_options& options_;
  std::string out_;
  std::vector<time_window> windows_;
  double makespan_ = 0;
  bool transfers_ = false;
  double lane_ = 0, strip_ = 0, pitch_ = 0;
  double left_ = 0, right_ = 0;
  double top_ = 52;
  double at_ = 0;            // where the stroke being drawn ends
  double number_width_ = 0;  // room that a box needs to carry its microbatch's number
};

}  // namespace detail

/// A timeline as SVG: one lane per stage, the transfers to and from the next stage below it. A long iteration is shown by
/// three windows (beginning, steady part, end) with explicit breaks; the size stays below about 1 MB. O(actions).
[[nodiscard]] inline timeline_picture draw_timeline(const timeline& t, const timeline_svg_options& options = {}) {
  return detail::timeline_drawing(t, options).draw();
}

/// The picture alone.
[[nodiscard]] inline std::string timeline_svg(const timeline& t, const timeline_svg_options& options = {}) {
  return draw_timeline(t, options).svg;
}

}  // namespace hetsched
