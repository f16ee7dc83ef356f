// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void validate(const timeline& t) {
  expect_count(t.ranks, "the ranks of a timeline", 0, most_stages);
  expect_count(t.microbatches, "the microbatches of a timeline", 0);
  const auto is_time = [](double s) { return s > -longest_time_s && s < longest_time_s; };
  for (const auto& a : t.actions) {
    expect_kind(a.what.kind);
    for (const int rank : {a.rank, std::max(a.peer, 0)})
      if (rank < 0 || rank >= t.ranks)
        throw input_error("a timeline of " + std::to_string(t.ranks) + " ranks lists rank " + std::to_string(rank));
    if (a.what.stage < 0 || a.what.stage == INT_MAX || a.what.direction < 0 || !is_time(a.start_s) || !is_time(a.end_s))
      throw input_error("a timeline lists " + to_text(a.what) + " from " + number_text(a.start_s) + " s to " +
                        number_text(a.end_s) + " s");
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE timeline side_by_side(const std::vector<timeline>& pipelines) {
  timeline all;
  for (const auto& t : pipelines) {
    detail::validate(t);
    detail::expect_count(t.ranks, "the ranks of a timeline", 0, detail::most_stages - all.ranks);
    for (auto a : t.actions) {
      a.rank += all.ranks;
      if (a.peer >= 0) a.peer += all.ranks;
      all.actions.push_back(a);
    }
    all.ranks += t.ranks;
    all.microbatches = std::max(all.microbatches, t.microbatches);
  }
  return all;
}

}  // namespace hetsched
