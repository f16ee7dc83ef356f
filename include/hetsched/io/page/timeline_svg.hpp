// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

struct timeline_svg_options {
  /// One per rank; empty: "stage i" if every rank computes the stage of its number only, else "rank i".
  std::vector<std::string> labels = {};
  double period_s = 0;   ///< steady time per microbatch, sets the scale; 0: the makespan over the microbatches
  int width = 1240;      ///< pixels
  bool compact = false;  ///< lower lanes and smaller text
  double span_s = 0;     ///< what the width stands for, so that pictures compare; below the makespan: the makespan
  /// Of critical_path, to be outlined; not in pictures of very many boxes.
  std::vector<timed_action> critical = {};
  bool page = false;   ///< a background of its own, where the page may not follow the reader's colour scheme
  bool zooms = false;  ///< numbers also where they are too small, hidden (class t) until the page has made them larger
};

/// A picture of a timeline, and what part of the timeline it shows.
struct timeline_picture {
  std::string svg;
  std::string shown;  ///< a sentence
};

/// A timeline as SVG: one lane per rank, and between neighbours the transfers in both directions. Transfers to ranks further
/// away lie above the sender's lane (to lower ranks) or below it. Three-phase transfers are three lines, fused computations
/// the two halves of a box. A long iteration is shown by three windows (beginning, steady part, end) with explicit breaks.
/// The text stays below about 1.2 MB for up to 1,000 ranks.
/// Requires: ranks of the actions in [0, ranks).
/// Complexity: O(actions).
[[nodiscard]] timeline_picture draw_timeline(const timeline& t, const timeline_svg_options& options = {});

/// The picture of draw_timeline alone.
/// Example:
///   const auto order = build_schedule("zb_h1", stages, 8);
///   const auto played = simulate(make_workload(stages, order), order);
///   write_file("timeline.svg", timeline_svg(played.timeline, {.page = true}));
[[nodiscard]] inline std::string timeline_svg(const timeline& t, const timeline_svg_options& options = {}) {
  return draw_timeline(t, options).svg;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/timeline_svg.ipp>
#endif
