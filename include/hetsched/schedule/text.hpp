// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

namespace detail {

/// The sizes and the stage map of a schedule, as far as its lists show them.
struct schedule_shape {
  int stages = 0;
  int directions = 1;
  int microbatches = 0;
  std::vector<int> rank_of;
  std::string problem;  ///< why the lists do not show them
};

}  // namespace detail

/// The schedule as the CSV of torch.distributed.pipelining: a row per rank, a cell per action. Joined actions share a cell,
/// (0F3;7B1)OVERLAP_F_B or (1SEND_F3;1RECV_B2)GROUP. Other lanes than compute follow, a row each, with a first cell that says
/// rank:stream or rank:stream:peer. Where the rows do not show sizes and stage map, a row
/// #microbatches:M,replicas:C,placement:R;R;... (direction by direction, which the file calls replicas and placement) comes
/// first. Lines end in \n.
/// Throws: input_error for a schedule whose first lanes are not its ranks' compute lanes, or that has no text: negative
/// numbers, a lane that starts with a joined action, microbatches where there should be none.
/// Complexity: O(actions).
[[nodiscard]] std::string to_csv(const schedule& order);

/// The schedule of a text as to_csv or torch.distributed.pipelining writes it: rows are ranks, and a stage lies on the rank
/// that computes it. Blank cells (idle slots) are passed over; lines may end in \r\n. Where rows list waits beside what they
/// wait for, as torch's with communication do, transfers and reductions begin where they are listed and hold up nobody: see
/// post_transfers.
/// Returns: a schedule that need not be sound: see check.
/// Throws: input_error that names row, column, what was found there and what was expected.
/// Complexity: O(text).
[[nodiscard]] schedule parse_schedule_csv(std::string_view text);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/text.ipp>
#endif
