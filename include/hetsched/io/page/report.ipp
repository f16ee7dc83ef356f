// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/schedule/activation_memory.hpp>

namespace hetsched {

HETSCHED_INLINE std::string devices_text(const stage_plan& s, const std::vector<std::string>& subclusters) {
  std::string text;
  for (const auto& g : s.devices)
    text += (text.empty() ? "" : " + ") + subclusters.at(as_size(g.mesh.subcluster)) + " " + std::to_string(g.mesh.nodes) + "x" +
            std::to_string(g.mesh.devices_per_node) + " [" +
            layers_text({g.first_device, g.first_device + g.mesh.device_count()}) + "]";
  return text;
}

HETSCHED_INLINE std::string uneven_text(const std::vector<double>& shares) {
  if (std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end()) return {};
  std::string parts;
  for (auto from = shares.begin(); from != shares.end();) {
    const auto to = std::find_if(from, shares.end(), [&](double x) { return x != *from; });
    parts += (parts.empty() ? "" : ", ") + std::to_string(to - from) + " x " + format_percent(*from);
    from = to;
  }
  return " (" + parts + ")";
}

HETSCHED_INLINE std::string degrees_text(const stage_plan& s) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const auto size = [&](const char* name, int degree) {
    if (degree > 1) add(name + (" " + std::to_string(degree)));
  };
  size("data", s.degrees.data);
  text += uneven_text(s.shares.data);
  size("context", s.degrees.context);
  size("tensor", s.degrees.tensor);
  text += uneven_text(s.shares.tensor);
  size("expert", s.degrees.expert);
  if (s.zero > 0) add("ZeRO " + std::to_string(s.zero));
  if (s.recompute != recomputation::none) add("recompute " + std::string(name_of(s.recompute)));
  return text.empty() ? "none" : text;
}

HETSCHED_INLINE std::string next_transfer_text(const boundary_plan& b) {
  const boundary_plan next{.forward_s = b.forward_occupied_s.value_or(b.forward_s),
                           .backward_s = b.backward_occupied_s.value_or(b.backward_s)};
  const bool sooner = next.forward_s < b.forward_s || next.backward_s < b.backward_s;
  return sooner ? ", next after " + transfer_text(next) : "";
}

}  // namespace hetsched

namespace hetsched::detail {

inline constexpr std::string_view report_style = R"(
:root{color-scheme:light dark;--text:#24292f;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--page:#fff;--used:#0072b2;--over:#b23c00;--shade:#24292f40;
--m0:#0072b2;--m1:#7b4fa3;--m2:#8a5a00;--m3:#00805d;--m4:#57606a}
@media(prefers-color-scheme:dark){:root{--text:#d7dce2;--soft:#9aa4af;--line:#373e47;--card:#1c2128;--page:#14181d;--used:#56b4e9;--over:#e0662a;--shade:#d7dce250;
--m0:#56b4e9;--m1:#b99ae0;--m2:#e6a93c;--m3:#3fbf97;--m4:#a0aab4}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1320px;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px}p{margin:4px 0 12px;color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:12px;margin:20px 0}
.figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.figure b{display:block;font-size:22px;font-weight:600;line-height:1.3}.figure span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto;background:linear-gradient(to left,var(--page) 17px,transparent 30px) right/30px 100% no-repeat local,
linear-gradient(to left,var(--shade),transparent) right/16px 100% no-repeat scroll}.wide:focus-visible{outline:2px solid var(--used)}
.wide th:first-child,.wide td:first-child{position:sticky;left:0;background:var(--page)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}table.narrow{width:auto;min-width:420px}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
td.w{white-space:normal;min-width:110px}td.m{white-space:normal;min-width:172px}td.m b{font-weight:400;white-space:nowrap}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}th.l,td.l{text-align:left}
.bar{display:inline-flex;vertical-align:middle;width:150px;height:12px;background:var(--line);border-radius:3px;overflow:hidden}
.bar i{height:100%;background:var(--used)}.bar i+i{border-left:1px solid var(--page)}.bar i.over{background:var(--over)}
i.m0{background:var(--m0)!important}i.m1{background:var(--m1)!important}i.m2{background:var(--m2)!important}i.m3{background:var(--m3)!important}i.m4{background:var(--m4)!important}
.bar.over{outline:2px solid var(--over)}
.key i{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 0;vertical-align:-1px}.key span{white-space:nowrap;margin-right:14px}
svg{display:block;width:100%;min-width:820px;height:auto}.zoom svg{min-width:0}
.zoom>input{position:absolute;opacity:0;pointer-events:none}
.zoom>label{display:inline-block;min-width:44px;margin:0 4px 8px 0;padding:2px 10px;border:1px solid var(--line);border-radius:6px;font-size:13px;text-align:center;cursor:pointer}
.zoom>input:checked+label{background:var(--used);color:var(--page)}.zoom>input:focus-visible+label{outline:2px solid var(--text)}
.zoom .wide{overflow:auto;max-height:88vh}
.zoom>input:nth-of-type(2):checked~.wide svg{width:200%}
.zoom>input:nth-of-type(3):checked~.wide svg{width:400%}
.zoom>input:nth-of-type(4):checked~.wide svg{width:800%}
.zoom>input:nth-of-type(n+2):checked~.wide text.t{display:inline}
@media(max-width:1100px){th,td{padding:5px 6px}.bar{width:110px}td.m{min-width:122px}td.m b{white-space:normal}}
@media print{.zoom>label{display:none}.zoom .wide{max-height:none}}
)";

/// What scrolls by itself where the window is narrow, also by keys.
[[nodiscard]] inline std::string scrolling(std::string_view what, std::string_view label) {
  return "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"" + escape_html(label) + "\">" + std::string(what) +
         "</div>\n";
}

/// A picture with buttons that make it larger; what does not fit then is reached by scrolling. Needs no script.
[[nodiscard]] inline std::string zooming(std::string_view picture, std::string_view label, std::size_t number) {
  std::string out = "<div class=\"zoom\">";
  for (const int times : {1, 2, 4, 8}) {
    const auto id = "zoom" + std::to_string(number) + "x" + std::to_string(times);
    out += "<input type=\"radio\" name=\"zoom" + std::to_string(number) + "\" id=\"" + id + "\"" +
           (times == 1 ? " checked" : "") + "><label for=\"" + id + "\">" +
           (times == 1 ? std::string("fit") : std::to_string(times) + "x") + "</label>";
  }
  return out + "\n" + scrolling(picture, label) + "</div>\n";
}

/// What fills a device, the small things together. Where a cost model does not tell gradients and optimizer from weights, all
/// of these are state.
[[nodiscard]] inline std::vector<memory_part> memory_parts(const memory_use& m) {
  const bool told = m.gradients > 0 || m.optimizer > 0;
  const auto other = checked_add(checked_add(m.buffers, m.temporary), checked_add(m.runtime, m.margin));
  std::vector<memory_part> parts{{"m0", told ? "weights" : "weights and their state", m.weights},
                                 {"m1", "gradients", m.gradients},
                                 {"m2", "optimizer", m.optimizer},
                                 {"m3", "activations", m.activations},
                                 {"m4", "buffers and other", other}};
  std::erase_if(parts, [](const auto& p) { return p.bytes <= 0; });
  return parts;
}

HETSCHED_INLINE std::string memory_bar(const stage_plan& s, const memory_use* held) {
  const double whole = static_cast<double>(std::max(s.memory_capacity_bytes, s.memory_bytes));
  const bool over = s.memory_bytes > s.memory_capacity_bytes;
  const auto width = [&](bytes_t bytes) { return print(" style=\"width:%.1f%%\"", 100 * static_cast<double>(bytes) / whole); };
  if (held == nullptr)
    return std::string("<span class=\"bar\"><i") + (over ? " class=\"over\"" : "") + width(s.memory_bytes) + "></i></span> ";
  std::string out = over ? "<span class=\"bar over\">" : "<span class=\"bar\">";
  for (const auto& p : memory_parts(*held))
    out += std::string("<i class=\"") + p.look + "\"" + width(p.bytes) + " title=\"" + p.name + ": " + format_bytes(p.bytes) +
           "\"></i>";
  return out + "</span> ";
}

HETSCHED_INLINE std::string memory_key(const report_section& section) {
  if (section.held.empty()) return "";
  std::vector<std::pair<memory_part, double>> all;
  for (const auto& m : section.held)
    for (auto& p : memory_parts(m)) {
      const double share = static_cast<double>(p.bytes) / static_cast<double>(m.total());
      const auto known =
          std::find_if(all.begin(), all.end(), [&](const auto& k) { return k.first.look == std::string_view(p.look); });
      if (known == all.end())
        all.emplace_back(std::move(p), share);
      else
        known->second = std::max(known->second, share);
    }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return std::string_view(a.first.look) < b.first.look; });
  std::string out = "<p class=\"key\">What fills the memory: ";
  for (const auto& [p, share] : all)
    out +=
        std::string("<span><i class=\"") + p.look + "\"></i>" + p.name + " (up to " + print("%.0f %%", share * 100) + ")</span> ";
  return out + "</p>\n";
}

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
  std::string out = "<table>\n<tr><th class=\"l\">stage</th>";
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
  // Long text may take several lines.
  const auto cell = [&](std::string_view text, bool left = false) {
    const bool is_long = text.size() > 18;
    out += left ? (is_long ? "<td class=\"l w\">" : "<td class=\"l\">") : is_long ? "<td class=\"w\">" : "<td>";
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
      out += "<td class=\"l m\">";
      if (s.memory_capacity_bytes > 0) out += memory_bar(s, i < section.held.size() ? &section.held[i] : nullptr);
      out += "<b>" + format_bytes(s.memory_bytes);
      if (s.memory_capacity_bytes > 0) out += " of " + format_bytes(s.memory_capacity_bytes) + print(" (%.0f %%)", share * 100);
      out += "</b></td>";
    }
    out += "</tr>\n";
  }
  return scrolling(out + "</table>", section.heading) + memory_key(section);
}

[[nodiscard]] inline std::string html_table(const report_table& table) {
  std::string out = "<table class=\"narrow\">\n";
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
  return scrolling(out + "</table>", table.heading);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_html(const report& r) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
  if (r.refresh_s > 0) out += "<meta http-equiv=\"refresh\" content=\"" + std::to_string(r.refresh_s) + "\">\n";
  out += "<title>";
  out += escape_html(r.title) + "</title>\n<style>";
  out += detail::report_style;
  out += "</style>\n</head>\n<body>\n<h1>" + escape_html(r.title) + "</h1>\n<p>" + escape_html(r.summary) +
         "</p>\n<div class=\"figures\">\n";
  for (const auto& f : r.figures)
    out += "<div class=\"figure\"><span>" + escape_html(f.label) + "</span><b>" + escape_html(f.value) + "</b><span>" +
           escape_html(f.note) + "</span></div>\n";
  out += "</div>\n";
  for (const auto& drawing : r.drawings) out += detail::scrolling(drawing, "Picture");
  std::size_t pictures = 0;
  const auto add_table = [&](const report_table& table) {
    out += "<h2>" + escape_html(table.heading) + "</h2>\n<p>" + escape_html(table.note) + "</p>\n" + detail::html_table(table);
  };
  for (const auto& table : r.tables) add_table(table);
  for (const auto& section : r.sections) {
    auto look = section.picture;
    look.zooms = true;
    const auto picture = draw_timeline(section.timeline, look);
    out += "<h2>" + escape_html(section.heading) + "</h2>\n" + detail::stage_table(section);
    out += "<h2>" + escape_html(section.timeline_heading) + "</h2>\n<p>" + escape_html(picture.shown) +
           " Wide boxes carry their microbatch, counted from 0; the strips between two lanes are what their ranks send.";
    double update_s = 0;
    for (const auto& s : section.line.stages) update_s = std::max(update_s, s.update_s);
    if (update_s > 0)
      out += " After it, stages add up the gradients of their replicas and update their weights, which takes up to " +
             format_seconds(update_s) + ".";
    out += "</p>\n";
    out += detail::zooming(picture.svg, section.timeline_heading, pictures++);
    if (!section.memory.empty()) {
      const memory_svg_options chart{
          .makespan_s = detail::end_of(section.timeline), .width = section.picture.width, .in_bytes = section.memory_in_bytes};
      out += "<h2>Memory over time</h2>\n<p>What the microbatches in flight hold on every rank, all on one scale.</p>\n";
      out += detail::scrolling(memory_svg(section.memory, chart), "Memory over time");
    }
    for (const auto& table : section.tables) add_table(table);
  }
  return out + "</body>\n</html>\n";
}

HETSCHED_INLINE std::vector<memory_curve> memory_curves(const workload& w, const timeline& t) {
  std::vector<memory_curve> curves;
  auto steps = memory_over_time(w, t);
  for (std::size_t r = 0; r < steps.size(); ++r)
    curves.push_back({.label = "rank " + std::to_string(r),
                      .steps = std::move(steps[r]),
                      .capacity = r < w.memory_capacity.size() ? w.memory_capacity[r] : 0});
  return curves;
}

HETSCHED_INLINE std::vector<critical_part> critical_parts(const std::vector<timed_action>& path) {
  std::vector<critical_part> parts;
  double covered_s = 0;
  for (const auto& a : path) {
    const int peer = is_transfer(a.what.kind) ? a.peer : -1;
    auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.rank == a.rank && p.peer == peer; });
    if (found == parts.end()) found = parts.insert(parts.end(), {.rank = a.rank, .peer = peer});
    ++found->actions;
    // A transfer may still be arriving when the wire that the next one waits for is free.
    const double seconds = a.end_s - std::max(a.start_s, covered_s);
    covered_s = std::max(covered_s, a.end_s);
    found->seconds += std::max(seconds, 0.0);
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return parts;
}

HETSCHED_INLINE report_figure bottleneck_figure(const std::vector<timed_action>& path, const std::vector<std::string>& names) {
  const auto name = [&](int rank) { return names.empty() ? "rank " + std::to_string(rank) : "stage " + names.at(as_size(rank)); };
  const auto most = critical_parts(path).front();
  double end_s = 0;
  for (const auto& a : path) end_s = std::max(end_s, a.end_s);
  return {"bottleneck", most.peer < 0 ? name(most.rank) : name(most.rank) + " to " + std::to_string(most.peer),
          (most.peer < 0 ? "its computations are " : "these transfers are ") +
              format_percent(end_s > 0 ? most.seconds / end_s : 0) + " of the critical path"};
}

HETSCHED_INLINE report_table critical_path_table(const std::vector<timed_action>& path, std::size_t most) {
  double end_s = 0;
  for (const auto& a : path) end_s = std::max(end_s, a.end_s);
  report_table table{.heading = "Critical path",
                     .note = "What the iteration waits for from its start to its end: a chain of " + std::to_string(path.size()) +
                             " actions, each of which lets the next one start.",
                     .columns = {"where", ">actions", ">time", ">share"},
                     .rows = {}};
  for (const auto& p : critical_parts(path)) {
    if (table.rows.size() == most) break;
    table.rows.push_back({"rank " + std::to_string(p.rank) + (p.peer < 0 ? "" : " to " + std::to_string(p.peer)),
                          std::to_string(p.actions), format_seconds(p.seconds), format_percent(p.seconds / end_s)});
  }
  return table;
}

HETSCHED_INLINE report_table what_if_table(const what_if_result& result, const workload& w, std::size_t most) {
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
    if (table.rows.size() == most || !(seconds < result.makespan_s * (1 - tolerance::sums))) break;
    table.rows.push_back({what, format_seconds(seconds), format_percent(1 - seconds / result.makespan_s)});
  }
  return table;
}

HETSCHED_INLINE std::vector<report_figure> prediction_figures(const inference_prediction& p) {
  return {{"first token", format_seconds(p.first_token_s), "after a request starts"},
          {"token", format_seconds(p.token_s), "between two of a request"},
          {"latency", format_seconds(p.latency_s), "of a request"},
          {"throughput", format_number(p.tokens_per_s), "tokens per second"},
          {"requests", format_number(p.requests_per_s), "per second"}};
}

HETSCHED_INLINE std::vector<report_figure> prediction_figures(const prediction& p, int sequence) {
  std::vector<report_figure> figures{{"iteration", format_seconds(p.iteration_s), "simulated"}};
  if (p.lower_bound_s > 0)
    figures.push_back({"lower bound", format_seconds(p.lower_bound_s),
                       gap_text(p.iteration_s, p.lower_bound_s) + ", of other orders of these stages"});
  if (p.period_s > 0) figures.push_back({"period", format_seconds(p.period_s), "per microbatch, pipeline full"});
  if (p.samples_per_s > 0) figures.push_back({"throughput", format_number(p.samples_per_s), "samples per second"});
  if (p.cost_per_sample)
    figures.push_back(
        {"cost", format_money(*p.cost_per_sample * p.samples_per_s * p.iteration_s),
         "per iteration" +
             (sequence > 0 ? ", " + format_money(*p.cost_per_sample / sequence * 1e6) + " per million tokens" : "") +
             ", for what is in use"});
  if (p.mfu > 0) figures.push_back({"MFU", format_percent(p.mfu), "of the peak of the devices in use"});
  if (p.load_balance > 0) figures.push_back({"load balance", format_percent(p.load_balance), "over the devices in use"});
  return figures;
}

HETSCHED_INLINE report_section plan_section(pipeline_plan line, std::vector<std::string> subclusters, timeline t,
                                            double period_s) {
  report_section section{.heading = "Stages",
                         .line = std::move(line),
                         .subclusters = std::move(subclusters),
                         .timeline = std::move(t),
                         .picture = {}};
  section.picture.period_s = period_s;
  for (std::size_t i = 0; i < section.line.stages.size(); ++i) {
    std::vector<std::string> names;
    for (const auto& g : section.line.stages[i].devices) {
      const auto& name = section.subclusters.at(as_size(g.mesh.subcluster));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    auto& label = section.picture.labels.emplace_back(std::to_string(i));
    for (std::size_t n = 0; n < names.size(); ++n) label += (n == 0 ? " " : "+") + names[n];
  }
  return section;
}

HETSCHED_INLINE report_section pipeline_section(const pipeline& p, const std::vector<int>& warmups, timeline t, double period_s) {
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
