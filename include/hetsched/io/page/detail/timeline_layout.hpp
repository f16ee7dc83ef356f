// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/page/timeline_svg_test.cpp.

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <vector>

#include <hetsched/io/page/detail/timeline_look.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched::detail {

/// A box of a timeline's picture; vertical places are pixels below the first row.
struct timeline_mark {
  const timed_action* what = nullptr;
  double top = 0, height = 0;
  std::size_t look = 0, step = 0;
};

/// What a timeline holds, and the vertical place of everything. From the top down, a rank has its transfers to lower ranks,
/// its lane, its collectives, and its transfers to higher ranks; so what neighbours exchange lies between them. Refers to the
/// timeline.
class timeline_layout {
 public:
  timeline_layout(const timeline& t, bool compact);

  int ranks = 0;
  double makespan_s = 0;
  bool plain = true;  ///< every rank computes the stage of its own number only
  int directions = 1;
  std::size_t shades = 1;  ///< virtual stages of a rank that are told apart
  bool occurs[timeline_look_count] = {};
  double lane = 0, strip = 0, margin = 0;  ///< heights
  double height = 0;
  std::vector<double> lane_top;
  std::vector<timeline_mark> marks;

 private:
  // Rows for the transfers of one rank to lower (or to higher) ranks; further peers share the last one.
  static constexpr std::size_t most_rows = 3;
  // Height of a three-phase transfer's row, in strips.
  static constexpr double staged_strips = 2;

  /// A directed pair of ranks that exchange something, and the row of its transfers.
  struct edge {
    int rank = 0, peer = 0;
    bool staged = false;
    double top = 0;
    /// As the rows lie, those to ranks further away next to the lane.
    friend bool operator<(const edge& a, const edge& b) {
      return std::tuple(a.rank, a.peer > a.rank, -a.peer) < std::tuple(b.rank, b.peer > b.rank, -b.peer);
    }
  };

  /// A virtual stage and the rank it is on.
  struct resident {
    int rank = 0, direction = 0, stage = 0;
    friend bool operator==(const resident&, const resident&) = default;
    friend auto operator<=>(const resident&, const resident&) = default;
  };

  static bool crosses(const timed_action& a) { return is_transfer(a.what.kind) && a.peer >= 0 && a.peer != a.rank; }
  static bool is_collective(const timed_action& a) { return is_parameter(a.what.kind) && a.what.kind != action_kind::optimizer; }
  static resident home_of(const timed_action& a) { return {a.rank, a.what.direction, a.what.stage}; }

  void survey(const timeline& t);

  void tidy_residents() {
    std::sort(residents_.begin(), residents_.end());
    residents_.erase(std::unique(residents_.begin(), residents_.end()), residents_.end());
  }

  void find_edges(const timeline& t);

  void place_rows();

  void mark_actions(const timeline& t);

  /// The three phases of a transfer lie below each other, the sender's side next to the sender.
  void place_transfer(timeline_mark& m) const;

  /// A computation fused with the one before it: the two share the lane's height.
  void share_lane(timeline_mark& before, timeline_mark& m) const {
    if (before.what->rank != m.what->rank || !is_compute(before.what->what.kind) || before.what->end_s <= m.what->start_s) return;
    before.height = m.height = lane / 2;
    m.top += lane / 2;
  }

  bool collectives_ = false;
  std::vector<resident> residents_;  // sorted
  std::vector<edge> edges_;          // sorted
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/detail/timeline_layout.ipp>
#endif
