// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/io/page/memory_svg.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/simulate/what_if.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

/// A headline number of a report.
struct report_figure {
  std::string label;
  std::string value;
  std::string note;
};

/// Any table of a report. Columns whose heading starts with '>' are aligned to the right.
struct report_table {
  std::string heading;
  std::string note;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  ///< as many cells as columns
};

/// A pipeline of a report: its stages and what they do over one iteration. What is empty, or 0 in every stage, is left out.
struct report_section {
  std::string heading;
  pipeline_plan line;                         ///< of a bare pipeline, its stages without layers and devices
  std::vector<std::string> subclusters = {};  ///< that its devices count
  std::vector<int> in_flight = {};            ///< per stage: most microbatches between forward and backward
  hetsched::timeline timeline;
  timeline_svg_options picture;
  std::vector<memory_curve> memory = {};
  bool memory_in_bytes = true;
  std::vector<report_table> tables = {};
  std::string timeline_heading = "Timeline of one iteration";
};

/// A report page.
struct report {
  std::string title;
  std::string summary;
  std::vector<report_figure> figures;
  std::vector<std::string> drawings = {};  ///< SVG
  std::vector<report_table> tables = {};
  std::vector<report_section> sections = {};
};

/// Text of a stage's layers as in plan.json: both ends included.
[[nodiscard]] inline std::string layers_text(layer_range layers) {
  const auto first = std::to_string(layers.first);
  return layers.size() == 1 ? first : first + "-" + std::to_string(layers.last - 1);
}

/// Text of a stage's devices: the subcluster, the shape, and the devices taken, counted node by node.
/// Requires: `subclusters` holds the names that they count.
[[nodiscard]] inline std::string devices_text(const stage_plan& s, const std::vector<std::string>& subclusters) {
  std::string text;
  for (const auto& g : s.devices)
    text += (text.empty() ? "" : " + ") + subclusters.at(static_cast<std::size_t>(g.mesh.subcluster)) + " " +
            std::to_string(g.mesh.nodes) + "x" + std::to_string(g.mesh.devices_per_node) + " [" +
            layers_text({g.first_device, g.first_device + g.mesh.device_count()}) + "]";
  return text;
}

/// Text of a stage's degrees, the sizes above 1, of uneven shares of its data, and of how it saves memory.
[[nodiscard]] inline std::string degrees_text(const stage_plan& s) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const auto size = [&](const char* name, int degree) {
    if (degree > 1) add(name + (" " + std::to_string(degree)));
  };
  size("data", s.degrees.data);
  if (const auto& shares = s.shares.data; std::any_of(shares.begin(), shares.end(), [&](double x) { return x != shares[0]; })) {
    std::string parts;
    for (auto from = shares.begin(); from != shares.end();) {
      const auto to = std::find_if(from, shares.end(), [&](double x) { return x != *from; });
      parts += (parts.empty() ? "" : ", ") + std::to_string(to - from) + " x " + format_percent(*from);
      from = to;
    }
    text += " (" + parts + ")";
  }
  size("context", s.degrees.context);
  size("tensor", s.degrees.tensor);
  size("expert", s.degrees.expert);
  if (s.zero > 0) add("ZeRO " + std::to_string(s.zero));
  if (s.recompute != recomputation::none) add("recompute " + std::string(name_of(s.recompute)));
  return text.empty() ? "none" : text;
}

/// Text of a boundary's times, one where both ways take as long, and of how it is resharded unless directly.
[[nodiscard]] inline std::string transfer_text(const boundary_plan& b) {
  auto text = format_seconds(b.forward_s);
  if (b.forward_s != b.backward_s) text += " / " + format_seconds(b.backward_s);
  return b.reshard.empty() || b.reshard == "direct" ? text : text + ", " + b.reshard;
}

/// Text of when the next transfer can follow, both ways; empty if that is when this one has arrived.
[[nodiscard]] inline std::string next_transfer_text(const boundary_plan& b) {
  const boundary_plan next{.forward_s = b.forward_occupied_s.value_or(b.forward_s),
                           .backward_s = b.backward_occupied_s.value_or(b.backward_s)};
  const bool sooner = next.forward_s < b.forward_s || next.backward_s < b.backward_s;
  return sooner ? ", next after " + transfer_text(next) : "";
}

namespace detail {

inline constexpr std::string_view report_style = R"(
:root{color-scheme:light dark;--text:#24292f;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--page:#fff;--used:#0072b2;--over:#d55e00}
@media(prefers-color-scheme:dark){:root{--text:#d7dce2;--soft:#9aa4af;--line:#373e47;--card:#1c2128;--page:#14181d;--used:#56b4e9}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1320px;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px}p{margin:4px 0 12px;color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:12px;margin:20px 0}
.figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.figure b{display:block;font-size:22px;font-weight:600;line-height:1.3}.figure span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}table.narrow{width:auto;min-width:420px}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}th.l,td.l{text-align:left}
.bar{display:inline-block;vertical-align:middle;position:relative;width:150px;height:11px;background:var(--line);border-radius:3px;overflow:hidden}
.bar i{position:absolute;left:0;top:0;bottom:0;background:var(--used)}.bar i.over{background:var(--over)}
svg{display:block;width:100%;min-width:820px;height:auto}
)";

[[nodiscard]] inline std::string stage_table(const report_section& section) {
  const auto& stages = section.line.stages;
  const auto any = [&](auto has) { return std::any_of(stages.begin(), stages.end(), has); };
  const bool layers = any([](const auto& s) { return s.layers.size() > 0; });
  const bool devices = any([](const auto& s) { return !s.devices.empty(); });
  const bool warmup = any([](const auto& s) { return s.warmup > 0; });
  const auto& lines = section.line.boundaries;
  const bool backward = any([](const auto& s) { return s.cost.backward_s > 0; }) ||
                        std::any_of(lines.begin(), lines.end(), [](const auto& b) { return b.backward_s > 0; });
  const bool weight = any([](const auto& s) { return s.cost.weight_backward_s > 0; });
  const bool update = any([](const auto& s) { return s.update_s > 0; });
  const bool memory = any([](const auto& s) { return s.memory_bytes > 0; });
  std::string out = "<div class=\"wide\"><table>\n<tr><th class=\"l\">stage</th>";
  if (layers) out += "<th class=\"l\">layers</th>";
  if (devices) out += "<th class=\"l\">devices</th><th class=\"l\">degrees</th>";
  if (warmup) out += "<th>warm-up</th>";
  out += backward ? "<th>forward</th><th>backward</th>" : "<th>forward</th>";
  if (weight) out += "<th>weight gradient</th>";
  out += "<th>transfer</th>";
  if (update) out += "<th>update</th>";
  if (!section.in_flight.empty()) out += "<th>in flight</th>";
  if (memory) out += "<th class=\"l\">memory per device</th>";
  out += "</tr>\n";
  const auto cell = [&](std::string_view text, bool left = false) {
    out += left ? "<td class=\"l\">" : "<td>";
    out += escape_html(text) + "</td>";
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    out += "<tr>";
    cell(std::to_string(i), true);
    if (layers) cell(layers_text(s.layers), true);
    if (devices) cell(devices_text(s, section.subclusters), true);
    if (devices) cell(degrees_text(s), true);
    if (warmup) cell(std::to_string(s.warmup));
    cell(format_seconds(s.cost.forward_s));
    if (backward) cell(format_seconds(s.cost.backward_s));
    if (weight) cell(format_seconds(s.cost.weight_backward_s));
    const auto* b = i < section.line.boundaries.size() ? &section.line.boundaries[i] : nullptr;
    cell(!b ? "-" : backward ? transfer_text(*b) + next_transfer_text(*b) : format_seconds(b->forward_s));
    if (update) cell(format_seconds(s.update_s));
    if (!section.in_flight.empty()) cell(std::to_string(section.in_flight[i]));
    if (memory) {
      const double share =
          s.memory_capacity_bytes > 0 ? static_cast<double>(s.memory_bytes) / static_cast<double>(s.memory_capacity_bytes) : 0;
      out += "<td class=\"l\">";
      if (s.memory_capacity_bytes > 0)
        out += print("<span class=\"bar\"><i%s style=\"width:%.1f%%\"></i></span> ", share > 1 ? " class=\"over\"" : "",
                     std::min(share, 1.0) * 100);
      out += format_bytes(s.memory_bytes);
      if (s.memory_capacity_bytes > 0) out += " of " + format_bytes(s.memory_capacity_bytes) + print(" (%.0f %%)", share * 100);
      out += "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

[[nodiscard]] inline std::string html_table(const report_table& table) {
  std::string out = "<div class=\"wide\"><table class=\"narrow\">\n";
  const auto right = [&](std::size_t c) { return !table.columns[c].empty() && table.columns[c][0] == '>'; };
  const auto row = [&](const char* tag, const std::vector<std::string>& cells, bool heading) {
    out += "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      out += std::string("<") + tag + (right(c) ? ">" : " class=\"l\">");
      out += escape_html(std::string_view(cells.at(c)).substr(heading && right(c) ? 1 : 0)) + "</" + tag + ">";
    }
    out += "</tr>\n";
  };
  row("th", table.columns, true);
  for (const auto& cells : table.rows) row("td", cells, false);
  return out + "</table></div>\n";
}

/// When the last action of a timeline ends.
[[nodiscard]] inline double end_of(const timeline& t) {
  double end = 0;
  for (const auto& a : t.actions) end = std::max(end, a.end_s);
  return end;
}

}  // namespace detail

/// A report as one HTML page that needs nothing else: no network, no fonts, no scripts. All text is escaped.
/// Below 2 MB for up to 1,000 stages in all, however many microbatches. O(actions).
[[nodiscard]] inline std::string to_html(const report& r) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>";
  out += escape_html(r.title) + "</title>\n<style>";
  out += detail::report_style;
  out += "</style>\n</head>\n<body>\n<h1>" + escape_html(r.title) + "</h1>\n<p>" + escape_html(r.summary) +
         "</p>\n<div class=\"figures\">\n";
  for (const auto& f : r.figures)
    out += "<div class=\"figure\"><span>" + escape_html(f.label) + "</span><b>" + escape_html(f.value) + "</b><span>" +
           escape_html(f.note) + "</span></div>\n";
  out += "</div>\n";
  for (const auto& drawing : r.drawings) out += "<div class=\"wide\">" + drawing + "</div>\n";
  const auto add_table = [&](const report_table& table) {
    out += "<h2>" + escape_html(table.heading) + "</h2>\n<p>" + escape_html(table.note) + "</p>\n" + detail::html_table(table);
  };
  for (const auto& table : r.tables) add_table(table);
  for (const auto& section : r.sections) {
    const auto picture = draw_timeline(section.timeline, section.picture);
    out += "<h2>" + escape_html(section.heading) + "</h2>\n" + detail::stage_table(section);
    out += "<h2>" + escape_html(section.timeline_heading) + "</h2>\n<p>" + escape_html(picture.shown) +
           " Wide boxes carry their microbatch, counted from 0; the strips between two lanes are what their ranks send.</p>\n";
    out += "<div class=\"wide\">" + picture.svg + "</div>\n";
    if (!section.memory.empty()) {
      const memory_svg_options chart{
          .makespan_s = detail::end_of(section.timeline), .width = section.picture.width, .in_bytes = section.memory_in_bytes};
      out += "<h2>Memory over time</h2>\n<p>What the microbatches in flight hold on every rank, all on one scale.</p>\n";
      out += "<div class=\"wide\">" + memory_svg(section.memory, chart) + "</div>\n";
    }
    for (const auto& table : section.tables) add_table(table);
  }
  return out + "</body>\n</html>\n";
}

/// Headline numbers of what a schedule does on a pipeline.
[[nodiscard]] inline std::vector<report_figure> simulation_figures(const simulation& s) {
  return {{"bubble ratio", format_percent(s.bubble_ratio), "idle share of the stages"},
          {"overlap ratio", format_percent(s.overlap_ratio), "share of communication that is hidden"}};
}

/// What the ranks of a timeline hold, against their capacity if the workload has any.
[[nodiscard]] inline std::vector<memory_curve> memory_curves(const workload& w, const timeline& t) {
  std::vector<memory_curve> curves;
  auto steps = memory_over_time(w, t);
  for (std::size_t r = 0; r < steps.size(); ++r)
    curves.push_back({.label = "rank " + std::to_string(r),
                      .steps = std::move(steps[r]),
                      .capacity = r < w.memory_capacity.size() ? w.memory_capacity[r] : 0});
  return curves;
}

/// What the critical path is made of: the computations of each rank, and what it sends to each other one, longest first.
[[nodiscard]] inline report_table critical_path_table(const std::vector<timed_action>& path) {
  struct part {
    std::string what;
    int actions = 0;
    double seconds = 0;
  };
  std::vector<part> parts;
  double end_s = 0, covered_s = 0;
  for (const auto& a : path) {
    const bool transfer = is_transfer(a.what.kind);
    const std::string what = "rank " + std::to_string(a.rank) + (transfer ? " to " + std::to_string(a.peer) : "");
    auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.what == what; });
    if (found == parts.end()) found = parts.insert(parts.end(), {.what = what});
    ++found->actions;
    // A transfer may still be arriving when the wire that the next one waits for is free.
    const double seconds = a.end_s - std::max(a.start_s, covered_s);
    covered_s = std::max(covered_s, a.end_s);
    found->seconds += std::max(seconds, 0.0);
    end_s = std::max(end_s, a.end_s);
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  report_table table{.heading = "Critical path",
                     .note = "What the iteration waits for from its start to its end: a chain of " + std::to_string(path.size()) +
                             " actions, each of which lets the next one start.",
                     .columns = {"where", ">actions", ">time", ">share"},
                     .rows = {}};
  for (const auto& p : parts)
    table.rows.push_back({p.what, std::to_string(p.actions), format_seconds(p.seconds), format_percent(p.seconds / end_s)});
  return table;
}

/// The ranks and wires that would win most if they took no time; at most `most` of them, none that wins nothing.
[[nodiscard]] inline report_table what_if_table(const what_if_result& result, const workload& w, std::size_t most = 12) {
  std::vector<std::pair<double, std::string>> gains;
  for (std::size_t r = 0; r < result.free_rank_s.size(); ++r)
    gains.emplace_back(result.free_rank_s[r], "computations of rank " + std::to_string(r));
  for (std::size_t k = 0; k < result.free_wire_s.size(); ++k)
    gains.emplace_back(result.free_wire_s[k], "wire " + w.wires[k].name);
  std::stable_sort(gains.begin(), gains.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  report_table table{.heading = "What if",
                     .note = "How long the iteration would take if one thing took no time, in the same order of work.",
                     .columns = {"without", ">makespan", ">shorter by"},
                     .rows = {}};
  for (const auto& [seconds, what] : gains) {
    if (table.rows.size() == most || !(seconds < result.makespan_s * (1 - 1e-9))) break;
    table.rows.push_back({what, format_seconds(seconds), format_percent(1 - seconds / result.makespan_s)});
  }
  return table;
}

/// Headline numbers of a prediction; what it does not know (0) is left out.
[[nodiscard]] inline std::vector<report_figure> prediction_figures(const prediction& p) {
  if (const auto& served = p.inference)
    return {{"first token", format_seconds(served->first_token_s), "after a request starts"},
            {"token", format_seconds(served->token_s), "between two of a request"},
            {"latency", format_seconds(served->latency_s), "of a request"},
            {"throughput", format_number(served->tokens_per_s), "tokens per second"},
            {"requests", format_number(served->requests_per_s), "per second"}};
  std::vector<report_figure> figures{{"iteration", format_seconds(p.iteration_s), "simulated"}};
  if (p.lower_bound_s > 0)
    figures.push_back({"lower bound", format_seconds(p.lower_bound_s), gap_text(p.iteration_s, p.lower_bound_s)});
  if (p.period_s > 0) figures.push_back({"period", format_seconds(p.period_s), "per microbatch, pipeline full"});
  if (p.samples_per_s > 0) figures.push_back({"throughput", format_number(p.samples_per_s), "samples per second"});
  if (p.cost_per_sample) figures.push_back({"cost", format_money(*p.cost_per_sample), "per sample, for the devices in use"});
  if (p.mfu > 0) figures.push_back({"MFU", format_percent(p.mfu), "of the peak of the devices in use"});
  if (p.load_balance > 0) figures.push_back({"load balance", format_percent(p.load_balance), "over the devices in use"});
  return figures;
}

/// A report section on one pipeline of a plan. Precondition: `subclusters` holds the names that its stages count.
[[nodiscard]] inline report_section plan_section(pipeline_plan line, std::vector<std::string> subclusters, timeline t,
                                                 double period_s) {
  report_section section{.heading = "Stages",
                         .line = std::move(line),
                         .subclusters = std::move(subclusters),
                         .timeline = std::move(t),
                         .picture = {}};
  section.picture.period_s = period_s;
  for (std::size_t i = 0; i < section.line.stages.size(); ++i) {
    const auto& s = section.line.stages[i];
    section.picture.labels.push_back(std::to_string(i) + " " +
                                     section.subclusters.at(static_cast<std::size_t>(s.devices.front().mesh.subcluster)));
  }
  return section;
}

/// A report section on a bare pipeline; without warm-up counts, if the schedule has none.
[[nodiscard]] inline report_section pipeline_section(const pipeline& p, const std::vector<int>& warmups, timeline t,
                                                     double period_s) {
  report_section section{.heading = "Stages", .line = {}, .timeline = std::move(t), .picture = {}};
  section.picture.period_s = period_s;
  for (std::size_t i = 0; i < p.forward_s.size(); ++i) {
    stage_plan s{.warmup = warmups.empty() ? 0 : warmups[i]};
    s.cost.forward_s = p.forward_s[i];
    s.cost.backward_s = p.backward_s[i];
    if (!p.weight_backward_s.empty()) s.cost.weight_backward_s = p.weight_backward_s[i];
    section.line.stages.push_back(s);
    if (i < p.transfer_s.size())
      section.line.boundaries.push_back({.forward_s = p.transfer_s[i],
                                         .backward_s = p.gradient_s(static_cast<int>(i)),
                                         .forward_occupied_s = p.activation_occupied_s(static_cast<int>(i)),
                                         .backward_occupied_s = p.gradient_occupied_s(static_cast<int>(i))});
  }
  return section;
}

}  // namespace hetsched
