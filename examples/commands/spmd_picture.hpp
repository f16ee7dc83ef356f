// SPDX-License-Identifier: Apache-2.0
// A program drawn as the graph that it computes: how each operator's result lies on the devices, and where they meet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>

namespace command {

inline constexpr int most_drawn_steps = 2000;

/// An SVG: operators as boxes below their inputs, coloured by the form in which they are computed; collectives as pills below the
/// boxes. Works in light and dark pages.
[[nodiscard]] inline std::string spmd_picture(const hetsched::tensor_graph& graph, const hetsched::spmd::program& program,
                                              const std::string& title) {
  using namespace hetsched;
  struct box {
    bool used = false;
    int row = 0, column = 0;
    spmd::tensor_form form = spmd::tensor_form::whole();
    std::string pills{};
  };
  std::vector<box> boxes(graph.nodes.size());
  const bool segments = segment_count(graph) > 1;
  const auto kind_of = [](spmd::tensor_form f) { return f.is_whole() ? "whole" : f.is_partial() ? "partial" : "cut"; };
  for (const auto& step : program) {
    auto& b = boxes[static_cast<std::size_t>(step.node)];
    b.used = true;
    if (step.collective)
      b.pills += (b.pills.empty() ? "" : ", ") + std::string(spmd::name_of(step.how)) + " to " + spmd::text_of(step.to);
    else
      b.form = step.rule.result;
    if (!step.collective && step.rule.shared && is_border(graph.at(step.node)))
      b.pills = "all_to_all from segment " + std::to_string(graph.at(graph.at(step.node).inputs[0]).segment);
  }
  // Operators stand below all of their inputs, leaves right above the first that reads them.
  for (int i = 0; i < graph.size(); ++i) {
    auto& b = boxes[static_cast<std::size_t>(i)];
    for (const int input : graph.at(i).inputs)
      if (!is_leaf(graph.at(input))) b.row = std::max(b.row, boxes[static_cast<std::size_t>(input)].row + 1);
    if (!is_leaf(graph.at(i))) b.row = std::max(b.row, 1);
  }
  for (int i = graph.size(); i-- > 0;)
    if (boxes[static_cast<std::size_t>(i)].used)
      for (const int input : graph.at(i).inputs)
        if (is_leaf(graph.at(input))) boxes[static_cast<std::size_t>(input)].row = boxes[static_cast<std::size_t>(i)].row - 1;
  std::vector<int> in_row;
  for (auto& b : boxes) {
    if (!b.used) continue;
    in_row.resize(std::max(in_row.size(), static_cast<std::size_t>(b.row) + 1));
    b.column = in_row[static_cast<std::size_t>(b.row)]++;
  }
  constexpr int wide = 190, high = 40, right = 26, below = 46, top = 78, left = 20;
  const int columns = in_row.empty() ? 1 : *std::max_element(in_row.begin(), in_row.end());
  const int width = std::max(640, left + columns * (wide + right)),
            height = top + static_cast<int>(in_row.size()) * (high + below) + 10;
  const auto x_of = [&](const box& b) {
    return (width - in_row[static_cast<std::size_t>(b.row)] * (wide + right) + right) / 2 + b.column * (wide + right);
  };
  const auto y_of = [&](const box& b) { return top + b.row * (high + below); };
  const auto number = [](int n) { return std::to_string(n); };
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) + " " + number(height) +
                    "\" width=\"" + number(width) + "\" height=\"" + number(height) + "\" class=\"hg\" role=\"img\">\n<title>" +
                    escape_html(title) + "</title>\n" +
                    "<style>.hg text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f;text-anchor:middle}.hg "
                    "text.t{text-anchor:start;"
                    "font-weight:600}.hg text.k{text-anchor:start}.hg rect{stroke:#57606a;stroke-width:1}.hg "
                    ".whole{fill:#eaeef2}.hg .cut{fill:#b6dcf5}.hg "
                    ".partial{fill:#fbd9a5}.hg .pill{fill:#d55e00;stroke:none}.hg text.p{fill:#fff;font-size:11px}.hg "
                    "text.s{font-size:11px;opacity:.75}.hg path{fill:none;stroke:#8c959f;"
                    "stroke-width:1.2}@media(prefers-color-scheme:dark){.hg text{fill:#d7dce2}.hg rect{stroke:#8b949e}.hg "
                    ".whole{fill:#30363d}.hg "
                    ".cut{fill:#12496b}.hg .partial{fill:#6b4a12}}</style>\n";
  const auto text = [&](int x, int y, const char* kind, const std::string& what) {
    out += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" class=\"" + kind + "\">" + escape_html(what) + "</text>\n";
  };
  const auto rectangle = [&](int x, int y, int w, int h, int round, const std::string& kind) {
    out += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(w) + "\" height=\"" + number(h) +
           "\" rx=\"" + number(round) + "\" class=\"" + kind + "\"/>\n";
  };
  text(left, 24, "t", title);
  int x = left;
  for (const char* form : {"whole", "cut", "partial"}) {
    rectangle(x, 38, 16, 16, 3, form);
    text(x + 22, 51, "k", std::string(form) == "partial" ? "parts of a sum" : form);
    x += 90;
  }
  rectangle(x + 60, 38, 16, 16, 8, "pill");
  text(x + 82, 51, "k", "the devices meet");
  for (int i = 0; i < graph.size(); ++i) {
    const auto& to = boxes[static_cast<std::size_t>(i)];
    if (!to.used) continue;
    for (const int input : graph.at(i).inputs) {
      const auto& from = boxes[static_cast<std::size_t>(input)];
      if (!from.used) continue;
      const int x1 = x_of(from) + wide / 2, y1 = y_of(from) + high, x2 = x_of(to) + wide / 2, y2 = y_of(to),
                bend = std::max(20, (y2 - y1) / 2);
      out += "<path d=\"M" + number(x1) + " " + number(y1) + " C" + number(x1) + " " + number(y1 + bend) + " " + number(x2) +
             " " + number(y2 - bend) + " " + number(x2) + " " + number(y2) + "\"/>\n";
    }
  }
  const auto short_of = [](std::string what) {
    if (what.size() <= 28) return what;
    std::size_t end = 27;
    while (end > 0 && (static_cast<unsigned char>(what[end]) & 0xC0) == 0x80) --end;  // inside a character of UTF-8
    return what.substr(0, end) + "…";
  };
  for (int i = 0; i < graph.size(); ++i) {
    const auto& b = boxes[static_cast<std::size_t>(i)];
    if (!b.used) continue;
    rectangle(x_of(b), y_of(b), wide, high, is_leaf(graph.at(i)) ? 16 : 4, kind_of(b.form));
    text(x_of(b) + wide / 2, y_of(b) + 33, "s",
         spmd::text_of(b.form) + (segments ? ", segment " + std::to_string(graph.at(i).segment) : ""));
    text(x_of(b) + wide / 2, y_of(b) + 17, "n",
         short_of(is_leaf(graph.at(i)) ? graph.at(i).name : graph.at(i).name + " = " + graph.at(i).op));
    if (b.pills.empty()) continue;
    rectangle(x_of(b) + 8, y_of(b) + high + 3, wide - 16, 18, 9, "pill");
    text(x_of(b) + wide / 2, y_of(b) + high + 16, "p", short_of(b.pills));
  }
  return out + "</svg>\n";
}

}  // namespace command
