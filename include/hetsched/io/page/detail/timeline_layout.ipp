// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/page/detail/timeline_layout.hpp>

namespace hetsched::detail {

HETSCHED_INLINE timeline_layout::timeline_layout(const timeline& t, bool compact) : ranks(t.ranks) {
  survey(t);
  find_edges(t);
  const int s = t.ranks;
  lane = s <= 8 ? (compact ? 20 : 30) : s <= 24 ? (compact ? 15 : 20) : s <= 80 ? 13 : s <= 200 ? 8 : 4;
  strip = s <= 8 ? (compact ? 4.5 : 6) : s <= 24 ? 4 : s <= 80 ? 2.5 : s <= 200 ? 1.5 : 1;
  margin = s <= 24 ? (compact ? 4 : 6) : s <= 80 ? 3 : 2;
  place_rows();
  mark_actions(t);
}

HETSCHED_INLINE void timeline_layout::survey(const timeline& t) {
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

HETSCHED_INLINE void timeline_layout::find_edges(const timeline& t) {
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

HETSCHED_INLINE void timeline_layout::place_rows() {
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

HETSCHED_INLINE void timeline_layout::mark_actions(const timeline& t) {
  marks.reserve(t.actions.size());
  for (const auto& a : t.actions) {
    if (!(a.end_s > a.start_s)) continue;
    timeline_mark m{.what = &a, .top = at(lane_top, a.rank), .height = lane, .look = look_of(a.what.kind), .step = 0};
    if (crosses(a)) {
      place_transfer(m);
    } else if (is_transfer(a.what.kind)) {
      continue;
    } else if (is_collective(a)) {
      m.top += lane + 1;
      m.height = strip;
    } else if (is_compute(a.what.kind)) {
      const auto first = std::lower_bound(residents_.begin(), residents_.end(), resident{a.rank, 0, 0});
      m.step = as_size(std::lower_bound(first, residents_.end(), home_of(a)) - first) % timeline_shades;
      if (a.what.joined && !marks.empty()) share_lane(marks.back(), m);
    }
    marks.push_back(m);
  }
}

HETSCHED_INLINE void timeline_layout::place_transfer(timeline_mark& m) const {
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

}  // namespace hetsched::detail
