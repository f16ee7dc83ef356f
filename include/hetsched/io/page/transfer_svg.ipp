// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/transfer_svg.hpp>

namespace hetsched::detail {

/// Draws senders on the left, receivers on the right, a frame around each node, and a line per message.
class transfer_drawing {
 public:
  transfer_drawing(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                   const transfer_svg_options& options)
      : plan_(p), cluster_(c), devices_(devices), options_(options), phases_(p.phase_count() / as_size(p.chunks)) {
    write_legend();
    place(0, p.sources);
    place(p.sources, p.sources + p.destinations);
    for (const auto& m : p.messages) most_ = std::max(most_, m.elements);
  }

  [[nodiscard]] std::string draw() const {
    const double height = *std::max_element(bottom_.begin(), bottom_.end()) + 20;
    std::string svg =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) + " " + number(height) + "\" width=\"" +
        number(width) + "\" height=\"" + number(height) +
        "\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<style>.t{fill:#24292f}.n{fill:none;stroke:#8b949e}"
        ".d{fill:#eaeef2;stroke:#57606a}";
    for (std::size_t k = 0; k < inks.size(); ++k) {
      svg +=
          ".p" + std::to_string(k) + "{fill:none;stroke:" + inks[k][0] + "}.k" + std::to_string(k) + "{fill:" + inks[k][0] + "}";
    }
    svg += "@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.d{fill:#30363d;stroke:#a0aab4}";
    for (std::size_t k = 0; k < inks.size(); ++k)
      svg += ".p" + std::to_string(k) + "{stroke:" + inks[k][1] + "}.k" + std::to_string(k) + "{fill:" + inks[k][1] + "}";
    svg += "}</style>\n";
    if (!options_.title.empty()) svg += text(20, 24, options_.title, "start", 15);
    svg += legend_;
    std::size_t phase = 0;
    for (std::size_t i = 0; i < plan_.messages.size(); ++i) {
      while (i >= plan_.phases[phase + 1]) ++phase;
      line(svg, plan_.messages[i], phase % phases_);
    }
    nodes(svg, 0, plan_.sources, left);
    nodes(svg, plan_.sources, plan_.sources + plan_.destinations, right);
    return svg + "</svg>\n";
  }

 private:
  static constexpr double width = 760, left = 210, right = 550, box = 46, row = 22;
  // Told apart without colour vision, on light and on dark pages (Okabe and Ito).
  static constexpr std::array<std::array<const char*, 2>, 4> inks{
      {{"#0072b2", "#4ba3dc"}, {"#d55e00", "#f0803c"}, {"#009e73", "#2fc29a"}, {"#b0509a", "#dd8cc4"}}};

  static std::string number(double value) { return print("%.1f", value); }
  static std::string text(double x, double y, const std::string& what, const char* anchor, int size = 12) {
    return "<text class=\"t\" x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\" font-size=\"" +
           std::to_string(size) + "\">" + escape_html(what) + "</text>\n";
  }
  [[nodiscard]] bool new_node(int device, int first) const {
    const auto &a = at(devices_, device), &b = at(devices_, device - (device > first));
    return device == first || a.subcluster != b.subcluster || a.node != b.node;
  }
  [[nodiscard]] std::string name(int device) const {
    const auto& d = at(devices_, device);
    return at(cluster_.subclusters, d.subcluster).name + ", node " + std::to_string(d.node) + ", device " +
           std::to_string(d.slot);
  }
  [[nodiscard]] std::string size_of(std::int64_t elements) const {
    return options_.element_bytes > 0
               ? format_bytes(static_cast<bytes_t>(static_cast<double>(elements) * options_.element_bytes + 0.5))
               : std::to_string(elements) + " elements";
  }

  void place(int first, int last) {
    double y = top_;
    for (int d = first; d < last; ++d) {
      if (new_node(d, first)) y += 26;
      y_.push_back(y);
      y += row;
    }
    bottom_.push_back(y);
  }

  /// Words on the phases, from left to right, as many to a line as there is room for.
  void write_legend() {
    double x = 20;
    for (std::size_t k = 0; k < std::min(phases_, inks.size()); ++k) {
      std::int64_t elements = 0;
      std::size_t messages = 0;
      // The last colour stands for all phases from there on.
      for (std::size_t phase = 0; phase < plan_.phase_count(); ++phase) {
        if (std::min(phase % phases_, inks.size() - 1) != k) continue;
        messages += plan_.phase(phase).size();
        for (const auto& m : plan_.phase(phase)) elements += m.elements;
      }
      const bool more = k + 1 == inks.size() && phases_ > inks.size();
      const auto words =
          (more ? "phases " + std::to_string(k + 1) + " to " + std::to_string(phases_) : "phase " + std::to_string(k + 1)) +
          ": " + std::to_string(messages) + (messages == 1 ? " message, " : " messages, ") + size_of(elements);
      const double wide = 36 + 6.6 * static_cast<double>(words.size());
      if (k > 0 && x + wide > width) {
        x = 20;
        top_ += 18;
      }
      legend_ += "<rect class=\"k" + std::to_string(k) + "\" x=\"" + number(x) + "\" y=\"" + number(top_ - 9) +
                 "\" width=\"14\" height=\"10\"/>\n" + text(x + 20, top_, words, "start");
      x += wide;
    }
    if (plan_.chunks > 1)
      legend_ +=
          text(20, top_ += 18, "in " + std::to_string(plan_.chunks) + " chunks, which go through the phases one behind the other",
               "start");
    top_ += 18;
  }

  void nodes(std::string& svg, int first, int last, double x) const {
    for (int d = first; d < last;) {
      int end = d + 1;
      while (end < last && !new_node(end, first)) ++end;
      const double y = at(y_, d);
      const auto& id = at(devices_, d);
      svg +=
          text(x + box / 2, y - 8, at(cluster_.subclusters, id.subcluster).name + ", node " + std::to_string(id.node), "middle");
      svg += "<rect class=\"n\" x=\"" + number(x - 4) + "\" y=\"" + number(y - 4) + "\" width=\"" + number(box + 8) +
             "\" height=\"" + number((end - d) * row + 4) + "\" rx=\"3\"/>\n";
      for (; d < end; ++d)
        svg += "<rect class=\"d\" x=\"" + number(x) + "\" y=\"" + number(at(y_, d)) + "\" width=\"" + number(box) +
               "\" height=\"" + number(row - 5) + "\" rx=\"2\"><title>" + escape_html(name(d)) + "</title></rect>\n" +
               text(x + box / 2, at(y_, d) + 13, std::to_string(at(devices_, d).slot), "middle", 11);
    }
  }

  void line(std::string& svg, const slice_message& m, std::size_t phase) const {
    const auto middle = [&](int d) { return at(y_, d) + (row - 5) / 2; };
    const double a = middle(m.from), b = middle(m.to);
    const double thick =
        0.6 + 2.4 * std::sqrt(static_cast<double>(m.elements) / static_cast<double>(std::max<std::int64_t>(most_, 1)));
    std::string path;
    if (plan_.crosses(m)) {
      path = "M" + number(left + box) + " " + number(a) + "L" + number(right) + " " + number(b);
    } else {
      // Within a side: bulges outwards, further for those that go further.
      const bool sender = m.from < plan_.sources;
      const double x = sender ? left : right + box, reach = std::min(150.0, 24 + 0.35 * std::abs(a - b));
      const double out = sender ? x - reach : x + reach;
      path = "M" + number(x) + " " + number(a) + "C" + number(out) + " " + number(a) + " " + number(out) + " " + number(b) + " " +
             number(x) + " " + number(b);
    }
    svg += "<path class=\"p" + std::to_string(std::min(phase, inks.size() - 1)) + "\" stroke-width=\"" + print("%.2f", thick) +
           "\" stroke-opacity=\"0.75\" d=\"" + path + "\"><title>" +
           escape_html(name(m.from) + " to " + name(m.to) + ": " + size_of(m.elements)) + "</title></path>\n";
  }

  const transfer_plan& plan_;
  const cluster& cluster_;
  std::span<const device_id> devices_;
  const transfer_svg_options& options_;
  std::size_t phases_;
  double top_ = 48;
  std::string legend_;
  std::vector<double> y_, bottom_;
  std::int64_t most_ = 0;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string transfer_svg(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                         const transfer_svg_options& options) {
  HETSCHED_EXPECTS(!p.messages.empty() && devices.size() == as_size(p.sources + p.destinations));
  return detail::transfer_drawing(p, c, devices, options).draw();
}

}  // namespace hetsched
