// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// The rank of every virtual stage (schedule::rank_of), in the usual shapes. A line: stage s on rank s.
[[nodiscard]] inline std::vector<int> line_map(int ranks) {
  std::vector<int> rank_of;
  for (int s = 0; s < ranks; ++s) rank_of.push_back(s);
  return rank_of;
}

/// A loop, several stages per rank: stage s on rank s % ranks.
[[nodiscard]] inline std::vector<int> loop_map(int ranks, int chunks) {
  std::vector<int> rank_of;
  for (int s = 0; s < ranks * chunks; ++s) rank_of.push_back(s % ranks);
  return rank_of;
}

/// A V, down and up again: stages r and 2 * ranks - 1 - r on rank r.
[[nodiscard]] inline std::vector<int> v_map(int ranks) {
  std::vector<int> rank_of;
  for (int s = 0; s < 2 * ranks; ++s) rank_of.push_back(s < ranks ? s : 2 * ranks - 1 - s);
  return rank_of;
}

/// One stage of either direction per rank: stage s of direction 0 on rank s, of direction 1 on rank ranks - 1 - s.
[[nodiscard]] inline std::vector<int> bidirectional_map(int ranks) { return v_map(ranks); }

namespace detail {

/// Checks the counts of a schedule to build.
/// Throws: input_error unless both counts are at least 1.
inline void require_counts(int ranks, int microbatches) {
  if (ranks < 1) throw input_error("a schedule needs at least one rank, not " + std::to_string(ranks));
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch, not " + std::to_string(microbatches));
}

}  // namespace detail
}  // namespace hetsched
