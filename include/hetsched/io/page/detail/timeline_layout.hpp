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
  timeline_layout(const timeline& t, bool compact) : ranks(t.ranks) {
    survey(t);
    find_edges(t);
    const int s = t.ranks;
    lane = s <= 8 ? (compact ? 20 : 30) : s <= 24 ? (compact ? 15 : 20) : s <= 80 ? 13 : s <= 200 ? 8 : 4;
    strip = s <= 8 ? (compact ? 4.5 : 6) : s <= 24 ? 4 : s <= 80 ? 2.5 : s <= 200 ? 1.5 : 1;
    margin = s <= 24 ? (compact ? 4 : 6) : s <= 80 ? 3 : 2;
    place_rows();
    mark_actions(t);
  }

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

  void survey(const timeline& t) {
    std::size_t limit = 1024;
    for (const auto& a : t.actions) {
      makespan_s = std::max(makespan_s, a.end_s);
      if (a.end_s > a.start_s && (crosses(a) || !is_transfer(a.what.kind))) {
        occurs[look_of(a.what.kind)] = true;
        collectives_ = collectives_ || is_collective(a);
      }
      if (!is_compute(a.what.kind)) continue;
      const resident home = home_of(a);
      if (residents_.empty() || residents_.back() != home) residents_.push_back(home);
      plain = plain && home.stage == home.rank;
      directions = std::max(directions, home.direction + 1);
      if (residents_.size() > limit) {
        tidy_residents();
        limit = 2 * residents_.size() + 1024;
      }
    }
    tidy_residents();
    std::size_t first = 0;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      if (residents_[i].rank != residents_[first].rank) first = i;
      shades = std::max(shades, std::min(i - first + 1, timeline_shades));
    }
  }

  void tidy_residents() {
    std::sort(residents_.begin(), residents_.end());
    residents_.erase(std::unique(residents_.begin(), residents_.end()), residents_.end());
  }

  void find_edges(const timeline& t) {
    std::vector<edge> found;
    for (const auto& a : t.actions) {
      if (!crosses(a) || !(a.end_s > a.start_s)) continue;
      if (found.empty() || found.back().rank != a.rank || found.back().peer != a.peer)
        found.push_back({.rank = a.rank, .peer = a.peer, .staged = false, .top = 0});
      found.back().staged = found.back().staged || phase_of(a.what.kind) >= 0;
    }
    std::stable_sort(found.begin(), found.end());
    for (const auto& e : found) {
      if (edges_.empty() || edges_.back() < e)
        edges_.push_back(e);
      else
        edges_.back().staged = edges_.back().staged || e.staged;
    }
  }

  void place_rows() {
    double y = 0;
    auto next = edges_.begin();
    const auto rows = [&](int rank, bool higher) {
      std::size_t row = 0;
      double row_height = 0;
      for (; next != edges_.end() && next->rank == rank && (next->peer > rank) == higher; ++next) {
        if (row++ < most_rows) {
          y += row_height;
          row_height = next->staged ? staged_strips * strip : strip;
        }
        next->top = y;
      }
      y += row_height;
    };
    for (int rank = 0; rank < ranks; ++rank) {
      rows(rank, false);
      lane_top.push_back(y);
      y += lane;
      if (collectives_) y += strip + 1;
      rows(rank, true);
      y += margin;
    }
    height = y;
  }

  void mark_actions(const timeline& t) {
    marks.reserve(t.actions.size());
    for (const auto& a : t.actions) {
      if (!(a.end_s > a.start_s)) continue;
      timeline_mark m{
          .what = &a, .top = lane_top[static_cast<std::size_t>(a.rank)], .height = lane, .look = look_of(a.what.kind), .step = 0};
      if (crosses(a)) {
        place_transfer(m);
      } else if (is_transfer(a.what.kind)) {
        continue;
      } else if (is_collective(a)) {
        m.top += lane + 1;
        m.height = strip;
      } else if (is_compute(a.what.kind)) {
        const auto first = std::lower_bound(residents_.begin(), residents_.end(), resident{a.rank, 0, 0});
        m.step = static_cast<std::size_t>(std::lower_bound(first, residents_.end(), home_of(a)) - first) % timeline_shades;
        if (a.what.joined && !marks.empty()) share_lane(marks.back(), m);
      }
      marks.push_back(m);
    }
  }

  /// The three phases of a transfer lie below each other, the sender's side next to the sender.
  void place_transfer(timeline_mark& m) const {
    const auto& a = *m.what;
    const auto& e =
        *std::lower_bound(edges_.begin(), edges_.end(), edge{.rank = a.rank, .peer = a.peer, .staged = false, .top = 0});
    m.top = e.top;
    m.height = strip;
    if (!e.staged) return;
    const int phase = phase_of(a.what.kind) < 0 ? 1 : phase_of(a.what.kind);
    m.height = staged_strips * strip / 3;
    m.top += m.height * (a.peer > a.rank ? phase : 2 - phase);
  }

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
