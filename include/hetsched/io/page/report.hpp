// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/memory_svg.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/plan/plan.hpp>
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
  std::vector<memory_use> held = {};          ///< per stage: what fills the memory of its devices
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
  int refresh_s = 0;  ///< a page that is open asks for itself anew after so many seconds; 0: never
};

/// Text of a stage's layers as in plan.json: both ends included.
[[nodiscard]] inline std::string layers_text(layer_range layers) {
  const auto first = std::to_string(layers.first);
  return layers.size() == 1 ? first : first + "-" + std::to_string(layers.last - 1);
}

/// The layers that share parameters: "0 and 17".
[[nodiscard]] inline std::string copy_text(const copy_sync_plan& c) {
  return std::to_string(c.owner) + " and " + std::to_string(c.layer);
}

/// Text of a stage's devices: the subcluster, the shape, and the devices taken, counted node by node.
/// Requires: `subclusters` holds the names that they count.
[[nodiscard]] std::string devices_text(const stage_plan& s, const std::vector<std::string>& subclusters);

/// " (2 x 30 %, 1 x 40 %)"; nothing for equal shares.
[[nodiscard]] std::string uneven_text(const std::vector<double>& shares);

/// Text of a stage's degrees, the sizes above 1, of uneven shares of its data and its tensor ranks, and of how it saves memory.
[[nodiscard]] std::string degrees_text(const stage_plan& s);

/// Text of a boundary's times, one where both ways take as long, and of how it is resharded unless directly.
[[nodiscard]] inline std::string transfer_text(const boundary_plan& b) {
  auto text = format_seconds(b.forward_s);
  if (b.forward_s != b.backward_s) text += " / " + format_seconds(b.backward_s);
  return b.reshard.empty() || b.reshard == "direct" ? text : text + ", " + b.reshard;
}

/// Text of when the next transfer can follow, both ways; empty if that is when this one has arrived.
[[nodiscard]] std::string next_transfer_text(const boundary_plan& b);

namespace detail {

/// A part of a device's memory, and how pictures show it.
struct memory_part {
  const char* look;
  std::string name;
  bytes_t bytes = 0;
};

/// A bar of a device's memory; of its parts, where these are known.
[[nodiscard]] std::string memory_bar(const stage_plan& s, const memory_use* held);

/// What the colours of memory bars mean, and the largest share of each part.
[[nodiscard]] std::string memory_key(const report_section& section);

/// When the last action of a timeline ends.
[[nodiscard]] inline double end_of(const timeline& t) {
  double end = 0;
  for (const auto& a : t.actions) end = std::max(end, a.end_s);
  return end;
}

}  // namespace detail

/// A report as one HTML page that needs nothing else: no network, no fonts, no scripts. All text is escaped.
/// Below 2 MB for up to 1,000 stages in all, however many microbatches. O(actions).
[[nodiscard]] std::string to_html(const report& r);

/// Headline numbers of what a schedule does on a pipeline.
[[nodiscard]] inline std::vector<report_figure> simulation_figures(const simulation& s) {
  return {{"bubble ratio", format_percent(s.bubble_ratio), "idle share of the stages"},
          {"overlap ratio", format_percent(s.overlap_ratio), "share of communication that is hidden"}};
}

/// What the ranks of a timeline hold, against their capacity if the workload has any.
[[nodiscard]] std::vector<memory_curve> memory_curves(const workload& w, const timeline& t);

/// What a critical path spends on the computations of a rank, or on what it sends to another one.
struct critical_part {
  int rank = 0;
  int peer = -1;  ///< of transfers
  int actions = 0;
  double seconds = 0;
};

/// The parts of a critical path, longest first.
[[nodiscard]] std::vector<critical_part> critical_parts(const std::vector<timed_action>& path);

/// Whose computations, or which transfers, take most of the critical path.
/// Requires: the path is not empty; `names` holds the ranks' names, or is empty.
[[nodiscard]] report_figure bottleneck_figure(const std::vector<timed_action>& path, const std::vector<std::string>& names = {});

/// What the critical path is made of: the computations of each rank, and what it sends to each other one, longest first; at most
/// `most` of these.
[[nodiscard]] report_table critical_path_table(const std::vector<timed_action>& path, std::size_t most = 1000);

/// The ranks and wires that would win most if they took no time; at most `most` of them, none that wins nothing.
[[nodiscard]] report_table what_if_table(const what_if_result& result, const workload& w, std::size_t most = 12);

/// Headline numbers of a prediction; what it does not know (0) is left out. `sequence`: tokens per sample, if money is to be told
/// per million of them; 0: not known.
[[nodiscard]] std::vector<report_figure> prediction_figures(const prediction& p, int sequence = 0);

/// The same of inference.
[[nodiscard]] std::vector<report_figure> prediction_figures(const inference_prediction& p);

/// A report section on one pipeline of a plan. Precondition: `subclusters` holds the names that its stages count.
[[nodiscard]] report_section plan_section(pipeline_plan line, std::vector<std::string> subclusters, timeline t, double period_s);

/// A report section on a bare pipeline; without warm-up counts, if the schedule has none.
[[nodiscard]] report_section pipeline_section(const pipeline& p, const std::vector<int>& warmups, timeline t, double period_s);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/report.ipp>
#endif
