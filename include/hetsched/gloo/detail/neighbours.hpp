// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <vector>

namespace hetsched::detail {

/// The ranks that are connected from the start: so many all with each other, as that is quickest, and more as a tree, in which a
/// rank has a parent and up to so many children. What all have to know goes along these connections; others are made when
/// channels need them.
inline constexpr int most_in_mesh = 16, children_per_rank = 4;

[[nodiscard]] constexpr bool is_mesh(int ranks) { return ranks <= most_in_mesh; }
/// Of a rank but the first one.
[[nodiscard]] constexpr int parent_of(int rank) { return (rank - 1) / children_per_rank; }

/// In order.
[[nodiscard]] inline std::vector<int> neighbours_of(int rank, int ranks) {
  std::vector<int> found;
  const auto is_one = [&](int r) { return (rank > 0 && r == parent_of(rank)) || (r > 0 && parent_of(r) == rank); };
  for (int r = 0; r < ranks; ++r)
    if (r != rank && (is_mesh(ranks) || is_one(r))) found.push_back(r);
  return found;
}

/// The neighbour of `rank` on the way to another one.
[[nodiscard]] constexpr int next_to(int rank, int other, int ranks) {
  if (is_mesh(ranks)) return other;
  for (int r = other; r > rank; r = parent_of(r))
    if (parent_of(r) == rank) return r;
  return parent_of(rank);
}

}  // namespace hetsched::detail
