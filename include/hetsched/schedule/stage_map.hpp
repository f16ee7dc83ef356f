// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// The rank of every virtual stage (schedule::rank_of), in the usual shapes. A line: stage s on rank s.
/// Throws: input_error unless there is a rank, as all of these, and for more stages than detail::most_stages.
[[nodiscard]] inline std::vector<int> line_map(int ranks) {
  detail::expect_count(ranks, "the number of ranks", 1, detail::most_stages);
  std::vector<int> rank_of;
  for (int s = 0; s < ranks; ++s) rank_of.push_back(s);
  return rank_of;
}

/// A loop, several stages per rank: stage s on rank s % ranks.
[[nodiscard]] inline std::vector<int> loop_map(int ranks, int chunks) {
  detail::expect_count(ranks, "the number of ranks", 1, detail::most_stages);
  detail::expect_count(chunks, "the number of chunks", 1, detail::most_stages / ranks);
  std::vector<int> rank_of;
  for (int s = 0; s < ranks * chunks; ++s) rank_of.push_back(s % ranks);
  return rank_of;
}

/// A V, down and up again: stages r and 2 * ranks - 1 - r on rank r.
[[nodiscard]] inline std::vector<int> v_map(int ranks) {
  detail::expect_count(ranks, "the number of ranks", 1, detail::most_stages / 2);
  std::vector<int> rank_of;
  for (int s = 0; s < 2 * ranks; ++s) rank_of.push_back(s < ranks ? s : 2 * ranks - 1 - s);
  return rank_of;
}

/// One stage of either direction per rank: stage s of direction 0 on rank s, of direction 1 on rank ranks - 1 - s.
[[nodiscard]] inline std::vector<int> bidirectional_map(int ranks) { return v_map(ranks); }

namespace detail {

/// The most actions that builders list of a microbatch on a stage, or of a chunk of it: of a V's, 3 for each of 2.
inline constexpr int most_listed = 6;

/// Checks the counts of a schedule to build.
/// Throws: input_error unless both counts are at least 1, and few enough for all actions to be counted.
inline void require_counts(int ranks, int microbatches) {
  if (ranks < 1) throw input_error("a schedule needs at least one rank, not " + std::to_string(ranks));
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch, not " + std::to_string(microbatches));
  expect_count(ranks, "the number of ranks", 1, most_stages);
  if (microbatches > INT_MAX / most_listed / ranks)
    throw input_error("a schedule of " + std::to_string(ranks) + " ranks and " + std::to_string(microbatches) +
                      " microbatches has too many actions");
}

}  // namespace detail
}  // namespace hetsched
